"""Pictures of results. Nothing is imported here: a plot loads its library when it is drawn."""

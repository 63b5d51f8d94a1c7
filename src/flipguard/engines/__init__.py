"""Where counting happens: on this machine (`local`) or on a cluster (`spark`)."""

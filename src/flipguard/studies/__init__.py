"""Studies: what the papers report, to be held beside what is measured here."""

"""Studies: repeat the papers' tables and figures, and compare the results with the papers."""

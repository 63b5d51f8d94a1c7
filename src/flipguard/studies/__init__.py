"""Studies: the papers' tables and figures, measured again and compared with what they report."""

"""What `compare_checkouts.py` runs, with which inputs, and how it reads what was written."""

"""The report: what an update breaks, as one page that needs nothing but a browser."""

"""What identifies a run: settings and keys. Nothing here needs torch or tables."""

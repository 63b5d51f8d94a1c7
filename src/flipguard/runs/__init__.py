"""Settings, keys and folders of runs. Nothing here needs torch or tables."""

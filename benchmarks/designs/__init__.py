"""Simulated designs, one module per kind of metric, that `calibration.py` runs and keeps."""

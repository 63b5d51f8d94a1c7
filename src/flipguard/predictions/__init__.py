"""Prediction tables: reading, writing, checking. Import from the modules, or from ``flipguard``.

Nothing is imported here, so that the learning side can write an NPZ (`flipguard.archives`)
on a machine that has numpy and no table library.
"""

"""Random tables in random formats, counted by flipguard and again by plain Python.

Nothing in here but `running.py` may import flipguard. `python -m tests.fuzzing --seed S --case K`
runs one case again.
"""

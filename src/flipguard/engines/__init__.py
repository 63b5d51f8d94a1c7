"""Engines that count flips: on this machine (`local`) or on a cluster (`spark`)."""

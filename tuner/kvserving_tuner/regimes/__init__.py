"""Loads: their fingerprints, when they change, and what served each of them best."""

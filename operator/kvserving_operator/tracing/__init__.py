"""Traces of decisions: from what was observed to what engines say is in force afterwards."""

"""Trials of changes: from a plan and what was seen to the next step, pure."""

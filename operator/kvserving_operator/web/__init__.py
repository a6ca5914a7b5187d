"""The read-only web view: what is tried, what was rolled back and why, what targets are met."""

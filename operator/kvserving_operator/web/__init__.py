"""The read-only web view: what is being tried, what was rolled back and why, and whether targets are met."""

"""`kubectl kvserving`: what KVServings do and why, and the few things that people do about it."""

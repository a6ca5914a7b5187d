"""How changes reach engines."""

"""What a log shows over time, for people: figures, decisions in words, one page."""

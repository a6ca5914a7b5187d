"""A cluster in memory for the tests of the kubectl plugin."""

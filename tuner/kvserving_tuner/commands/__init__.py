"""Subcommands of `kvserving`, one module each."""

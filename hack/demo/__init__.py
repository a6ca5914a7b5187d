"""The demo: the first example, a load that is too much for its KV cache, and the tuner at work."""

"""How much memory a model's KV cache takes, from its configuration alone."""

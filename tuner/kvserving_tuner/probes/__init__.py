"""What a KV cache must not break, measured on the engine itself."""

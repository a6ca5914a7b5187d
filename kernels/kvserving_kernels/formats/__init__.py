"""Names, layouts and sizes of KV cache formats; imports neither torch nor vLLM."""

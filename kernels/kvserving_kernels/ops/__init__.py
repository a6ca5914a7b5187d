"""Store and attend on pages of quantized keys and values; knows nothing of vLLM."""

"""KVServing kernels: KV formats, the vLLM plugin and its runtime API."""

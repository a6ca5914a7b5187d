"""KVServing tuner: observations to diagnosis to decision, for any vLLM engine."""

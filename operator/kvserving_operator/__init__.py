"""KVServing operator: custom resources to serving pods, and the tuner's decisions carried out."""

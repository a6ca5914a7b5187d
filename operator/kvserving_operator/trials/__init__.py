"""Trials of KV cache settings on the engines of a KVServing."""

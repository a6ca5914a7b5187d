"""Test kit for operations on the KV cache; needs torch, so it runs in an engine's environment."""

from kernelkit.cache import IMPLEMENTATIONS, Cache, attention, random_tokens, tokens_of

__all__ = ["IMPLEMENTATIONS", "Cache", "attention", "random_tokens", "tokens_of"]

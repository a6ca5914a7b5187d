"""Checks an engine's arguments before any pod is rolled: no weights, no GPU, one line of JSON.

`python3 -m kvserving_kernels.preflight -- <arguments of vllm serve>` exits 0 if nothing speaks
against a start, 2 if something does, and 3 if the check itself broke. Cheap checks come first and
need no vLLM; then vLLM's own parser and configuration have their say.
"""

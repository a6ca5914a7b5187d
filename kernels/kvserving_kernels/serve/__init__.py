"""`vllm serve` whose last word is why it failed.

When an engine cannot start, the reason stands in the output of a child process, hundreds of lines
before the end: what ends the output is a traceback that says "see root cause above". A container
shows only the end. `python3 -m kvserving_kernels.serve MODEL --flags` runs `vllm serve`, passes its
output and signals on, and leaves the reason in the container's termination message.
"""

"""A simulator of vLLM's scheduler: what an engine would do with a workload under given settings.

It schedules as vLLM does, counts every step, and is fast because steps that are alike are taken at
once. What it models and what it leaves out is in docs/simulator.md.
"""

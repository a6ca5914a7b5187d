"""Alert rules and dashboards of the chart, as code: `python -m observability --write`.

Names of engine metrics come from the tuner's table of aliases, so that rules and panels read every
vLLM release that the tuner reads.
"""

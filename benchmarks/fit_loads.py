"""Fit the models of load that come with the simulator to public traces.

    python benchmarks/fit_loads.py azure-code=AzureLLMInferenceTrace_code.csv.gz ...

Each argument is a model's name and its trace; the result is `simulator/loads.json`.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import envelope

from kvserving_tuner.simulator.loads import fit_load, to_json
from kvserving_tuner.simulator.traces import read_trace

OUT = envelope.ROOT / "tuner/kvserving_tuner/simulator/loads.json"
SOURCES = {
    "azure": "Azure/AzurePublicDataset b469a113, LLM inference trace 2023, CC-BY-4.0",
    "mooncake": "kvcache-ai/Mooncake 3b5a5941, FAST'25 traces, Apache-2.0",
}


def main() -> None:
    """Fit every trace that was named."""
    models = []
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        model = fit_load(read_trace(Path(path)), SOURCES[name.partition("-")[0]])
        models.append(to_json(replace(model, name=name)))
    rows = (json.dumps(model) for model in models)
    OUT.write_text("[\n " + ",\n ".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()

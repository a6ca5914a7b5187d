"""Sphinx's settings: `sphinx-build -W docs build/docs` makes the site."""

import tomllib
from pathlib import Path

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "KVServing"
version = release = _project["version"]
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"{project} {version}"
exclude_patterns = ["decisions/README.md"]
myst_heading_anchors = 4
# Links to examples, results and manifests lead into the repository and not into the site.
suppress_warnings = ["myst.xref_missing"]
nitpicky = True

"""Grafana's files of all dashboards."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from observability import fleet, quality, service
from observability.panels import Panel, Rows, dashboard

FOLDER = Path("charts/kvserving/files/dashboards")


def boards() -> dict[str, Rows]:
    """Give the panels of each dashboard, by its file's name."""
    return {"fleet": fleet.rows(), "service": service.rows(), "quality": quality.rows()}


def panels() -> tuple[tuple[str, Panel], ...]:
    """Give every panel with the name of its dashboard."""
    return tuple(
        (name, panel) for name, rows in boards().items() for row in rows.values() for panel in row
    )


def dashboard_files() -> dict[Path, str]:
    """Give path and content of each dashboard."""
    files: dict[Path, str] = {}
    for module in (fleet, service, quality):
        single = module is service
        built = dashboard(module.UID, module.TITLE, module.ABOUT, module.rows(), single).build()
        text = json.dumps(built, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False)
        files[FOLDER / f"{module.UID.removeprefix('kvserving-')}.json"] = text + "\n"
    return files

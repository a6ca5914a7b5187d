"""Series for promtool, from what engines and the operator expose."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


def of_expositions(texts: Sequence[str], labels: Labels) -> list[dict[str, str]]:
    """Give one target's series, a sample for each exposition in turn, as its scrapes would."""
    found: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = series(sample.name, **{**sample.labels, **labels})
                values = found.setdefault(name, ["_"] * number)
                values.append(repr(float(sample.value)))
        for values in found.values():
            values.extend(["_"] * (number + 1 - len(values)))
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def constant(values: Mapping[str, float], minutes: int) -> list[dict[str, str]]:
    """Give series that stay as they are."""
    return [{"series": name, "values": f"{value}x{minutes}"} for name, value in values.items()]


def rising(rates: Mapping[str, float], minutes: int) -> list[dict[str, str]]:
    """Give counters by how much they rise in a minute."""
    return [{"series": name, "values": f"0+{rate}x{minutes}"} for name, rate in rates.items()]


def histogram(
    name: str, labels: Labels, share_within: Mapping[float, float], per_minute: float
) -> dict[str, float]:
    """Give a histogram's rises in a minute, from the share of values within each edge."""
    edges: Iterable[tuple[str, float]] = (
        *((f"{edge:g}", share) for edge, share in share_within.items()),
        ("+Inf", 1.0),
    )
    return {
        series(f"{name}_bucket", le=edge, **labels): per_minute * share for edge, share in edges
    }


def series(metric: str, /, **labels: str) -> str:
    """Give a series' name in PromQL."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{metric}{{{inside}}}"

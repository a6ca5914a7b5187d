"""PromQL for a quantity of the engines, under whichever name an engine's vLLM release has it."""

from kvserving_tuner.aliases import SPECS, Alias, Kind, Quantity

SERVING = "namespace, name"
"""Labels that tell KVServings apart, on engines' series and on the operator's."""
ENGINE = "namespace, name, pod"
TARGET = "job, instance"
"""Labels that tell Prometheus' targets apart: one engine, scraped by one job."""


def each(quantity: Quantity, matchers: str, over: str = "{}", suffix: str = "") -> str:
    """Give one series for each engine; of several names the newest that the engine has counts.

    `over` is what is done with each name's selector, such as `rate({}[5m])`; `suffix` names the
    part of a histogram. Of one name it needs no brackets, of several it has them.
    """
    selectors = [selector(alias, matchers, suffix) for alias in SPECS[quantity].aliases]
    found = [over.format(selector) for selector in selectors]
    if len(found) == 1:
        return found[0]
    # By target and not by all labels: two names of one histogram differ in their buckets.
    return "(\n  " + f"\n  or on ({TARGET}) ".join(found) + "\n)"


def by(labels: str, aggregate: str, expression: str) -> str:
    """Aggregate by these labels."""
    inside = expression if expression.startswith("(\n") else f"({expression})"
    return f"{aggregate} by ({labels}) {inside}"


def quantile(
    share: float | str, quantity: Quantity, matchers: str, window: str, labels: str = SERVING
) -> str:
    """Give a quantile of a histogram over all engines with the same labels, over a window."""
    if SPECS[quantity].kind is not Kind.HISTOGRAM:
        raise ValueError(f"{quantity}: expected a histogram, got a {SPECS[quantity].kind}")
    buckets = each(quantity, matchers, f"rate({{}}[{window}])", "_bucket")
    return f"histogram_quantile({share}, {by(f'{labels}, le', 'sum', buckets)})"


def selector(alias: Alias, matchers: str, suffix: str = "") -> str:
    """Give the selector of a quantity under one of its names."""
    wanted = [f'{label}="{value}"' for label, value in alias.where.items()]
    wanted += [f'{label}=~"{begin}.*"' for label, begin in alias.begins.items()]
    wanted += [f'{label}=~"({"|".join(ends)}).*"' for label, ends in alias.summed.items()]
    return f"{alias.name}{suffix}{{{','.join([matchers, *wanted])}}}"

"""Panels of a dashboard, each with what it shows and the queries behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef("prometheus", "${datasource}")
ONE: Final = 'namespace=~"$namespace",name=~"$name"'
"""Matchers of what the variables choose."""
RATE: Final = "$__rate_interval"
HEIGHT: Final = 8
KNOWN: Final = "kvserving_slo_percentile"
"""A series that every KVServing has."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and how its series are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Chart:
    """Series over time."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    about: str = ""
    most: float | None = None
    least: float | None = 0
    width: int = 8

    def build(self) -> timeseries.Panel:
        """Give the panel."""
        panel = (
            timeseries.Panel()
            .title(self.title)
            .description(self.about)
            .datasource(SOURCE)
            .unit(self.unit)
            .height(HEIGHT)
            .span(self.width)
            .fill_opacity(8)
            .legend(
                VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        )
        if self.least is not None:
            panel = panel.min(self.least)
        if self.most is not None:
            panel = panel.max(self.most)
        for target in _targets(self.queries):
            panel = panel.with_target(target.range())
        return panel


@dataclass(frozen=True)
class Number:
    """One number of now, or the name of the series that there is."""

    title: str
    query: Query
    unit: str = "short"
    about: str = ""
    width: int = 4
    named: bool = False

    def build(self) -> stat.Panel:
        """Give the panel."""
        (target,) = _targets((self.query,))
        return (
            stat.Panel()
            .title(self.title)
            .description(self.about)
            .datasource(SOURCE)
            .unit(self.unit)
            .no_value("none")
            .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
            .text_mode(BigValueTextMode.NAME if self.named else BigValueTextMode.VALUE)
            .height(4)
            .span(self.width)
            .with_target(target.instant())
        )

    @property
    def queries(self) -> Sequence[Query]:
        """Its queries."""
        return (self.query,)


@dataclass(frozen=True)
class Table:
    """What holds now, a row for each series, with these labels as columns."""

    title: str
    query: Query
    columns: Sequence[str]
    about: str = ""
    value: str | None = None
    """Name of the column with the series' values; None for none."""
    width: int = 12

    def build(self) -> table.Panel:
        """Give the panel."""
        (target,) = _targets((self.query,))
        names = [*self.columns, *(["Value"] if self.value else [])]
        organized = DataTransformerConfig(
            "organize", options={"renameByName": {"Value": self.value} if self.value else {}}
        )
        return (
            table.Panel()
            .title(self.title)
            .description(self.about)
            .datasource(SOURCE)
            .height(HEIGHT)
            .span(self.width)
            .with_target(target.instant().format(PromQueryFormat.TABLE))
            .with_transformation(
                DataTransformerConfig("filterFieldsByName", options={"include": {"names": names}})
            )
            .with_transformation(organized)
        )

    @property
    def queries(self) -> Sequence[Query]:
        """Its queries."""
        return (self.query,)


Panel = Chart | Number | Table
Rows = dict[str, Sequence[Panel]]


def dashboard(uid: str, title: str, about: str, rows: Rows, single: bool) -> Dashboard:
    """Give a dashboard of all KVServings that the variables choose, or of a single one."""
    built = (
        Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["kvserving"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("namespace", "Namespace", KNOWN, single))
        .with_variable(
            _variable("name", "KVServing", f'{KNOWN}{{namespace=~"$namespace"}}', single)
        )
    )
    for name, panels in rows.items():
        built = built.with_row(Row(name))
        for panel in panels:
            built = built.with_panel(panel.build())
    return built


def _variable(name: str, label: str, series: str, single: bool) -> QueryVariable:
    variable = (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({series}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return variable if single else variable.multi(True).include_all(True).all_value(".*")


def _targets(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .datasource(SOURCE)
        .ref_id(chr(ord("A") + number))
        for number, query in enumerate(queries)
    ]

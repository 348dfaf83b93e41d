"""What the dashboards are made of: panels, rows, variables, and their JSON by the types of
grafana-foundation-sdk.

A panel here states what is shown: title, unit, and expressions by legend. How it is drawn is the
same everywhere and is stated once, in this file. The description of a panel is its note, then the
help of every metric that it shows, from the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks, dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from raysync.record.metrics_registry import REGISTRY

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""The columns of Grafana's grid."""
HELP = {metric.exported: metric.help for metric in REGISTRY.values()}

Drawn = TypeVar(
    "Drawn",
    bargauge.Panel,
    heatmap.Panel,
    stat.Panel,
    statetimeline.Panel,
    table.Panel,
    timeseries.Panel,
)


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: what is shown.
        unit: one of Grafana's list (`s`, `percentunit`, `short`, `bytes`), or `suffix:...`.
        queries: legend -> expression in PromQL; for a table, column -> expression.
        kind: lines; numbers (the latest); named numbers (their legends,
            too); names (the legends, now); bars (the latest, by name);
            heat (buckets over time); states (over time); table (a column an expression).
        note: how to read it; the help of its metrics in the registry is added to it.
        empty: the text shown while there is no data; if empty, Grafana's own "No data".
        top: the upper end of the axis.
        dashed: a regular expression for the legends whose lines are dashed.
        percent: a regular expression for the legends whose values are fractions of 1.
        stacked: whether lines are stacked.
    """

    title: str
    unit: str
    queries: Mapping[str, str]
    kind: Literal[
        "lines", "numbers", "named numbers", "names", "bars", "heat", "states", "table"
    ] = "lines"
    note: str = ""
    empty: str = ""
    top: float | None = None
    dashed: str = ""
    percent: str = ""
    stacked: bool = False
    units: Mapping[str, str] = field(default_factory=dict)
    """The units of the columns of a table that have another than the panel."""
    link: str = ""
    """The column of a table whose values link to the dashboard of that run."""


@dataclass(frozen=True)
class Row:
    """A row with a title, and panels of one width and height (of Grafana's 24 columns; a height of
    8 is some 300 pixels).
    """

    title: str
    panels: Sequence[Panel]
    columns: int = 3
    height: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice above a dashboard, from the values of a label."""

    name: str
    label: str
    query: str
    regex: str = ""
    """Its first group picks the choice out of each value."""
    many: bool = True
    newest_first: bool = False


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[Row]


def series(name: str, selector: str = "", part: str = "") -> str:
    """Return the series of a metric of the registry, by their name in Prometheus.

    Args:
        name: its name in the registry.
        selector: label matchers, without the braces.
        part: `_bucket`, `_sum` or `_count` of a histogram.

    Raises:
        KeyError: the registry has no such metric.
    """
    return f"{REGISTRY[name].exported}{part}" + (f"{{{selector}}}" if selector else "")


def rate(name: str, selector: str, part: str = "") -> str:
    """Return the growth per second, over the shortest time that Grafana holds to be safe for the
    scrape interval.
    """
    return f"rate({series(name, selector, part)}[$__rate_interval])"


def total(name: str, selector: str, by: str = "") -> str:
    """Return the sum of the last values in the time shown, also of processes that have ended: Ray
    forgets their series.
    """
    return f"sum {f'by ({by}) ' if by else ''}(last_over_time({series(name, selector)}[$__range]))"


def quantile(share: float, name: str, selector: str, by: str = "") -> str:
    """Return a recent quantile of a histogram; within a bucket it is interpolated."""
    return (
        f"histogram_quantile({share}, sum by ({by}{', ' if by else ''}le)"
        f" ({rate(name, selector, '_bucket')}))"
    )


def whole(expression: str) -> str:
    """Return a quantile of counts as the whole number that it stands for.

    Buckets of counts end between whole numbers, and Prometheus interpolates, so that it makes 0.475
    of 100 zeros. In a bucket that holds several numbers, the result is one of these.
    """
    return f"ceil ({expression} - 0.5)"


def per(total: str, of: str) -> str:
    """Return a mean, without a value while there is nothing to divide by: no axis can show an
    infinity.
    """
    return f"{total} / ({of} > 0)"


def or_none(expression: str, label: str = "") -> str:
    """Return an expression, or 0 (with "none" as that label) while it has no series: that nothing
    has happened yet is an answer, too.
    """
    zero = f'label_replace(vector(0), "{label}", "none", "", "")' if label else "vector(0)"
    return f"{expression} or on() {zero}"


def as_json(board: Board) -> str:
    """Return the JSON of a dashboard, as Grafana reads it from a file."""
    drawn = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["raysync"])
        .editable()
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("raysync")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["raysync"])
            .keep_time(True)
        )
    )
    drawn.with_variable(
        dashboard.DatasourceVariable("datasource")
        .label("Prometheus")
        .type("prometheus")
        .current(models.VariableOption(selected=True, text="Prometheus", value="Prometheus"))
    )
    for variable in board.variables:
        drawn.with_variable(_variable(variable))
    ids = count(1)
    for row in board.rows:
        drawn.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel in row.panels:
            drawn.with_panel(_drawn(panel, next(ids), WIDTH // row.columns, row.height))
    return json.dumps(drawn.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(variable: Variable) -> dashboard.QueryVariable:
    query = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(
            models.VariableSort.ALPHABETICAL_DESC
            if variable.newest_first
            else models.VariableSort.ALPHABETICAL_ASC
        )
    )
    if variable.regex:
        query.regex(variable.regex)
    if variable.many:
        query.multi(True).include_all(True).all_value(".+")
        query.current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return query


def _drawn(panel: Panel, number: int, width: int, height: int) -> Builder[models.Panel]:
    """Return a panel as one of Grafana's."""
    match panel.kind:
        case "lines":
            return _completed(_lines(panel), panel, number, width, height)
        case "numbers":
            return _completed(_numbers(looks.BigValueTextMode.VALUE), panel, number, width, height)
        case "named numbers":
            text = looks.BigValueTextMode.VALUE_AND_NAME
            return _completed(_numbers(text), panel, number, width, height)
        case "names":
            return _completed(_numbers(looks.BigValueTextMode.NAME), panel, number, width, height)
        case "bars":
            return _completed(_bars(panel), panel, number, width, height)
        case "heat":
            return _completed(_heat(panel), panel, number, width, height)
        case "states":
            return _completed(_states(), panel, number, width, height)
        case "table":
            return _completed(_table(panel), panel, number, width, height)


def _completed(drawn: Drawn, panel: Panel, number: int, width: int, height: int) -> Drawn:
    """Add to a panel what all kinds have."""
    drawn.id(number).title(panel.title).description(_description(panel)).datasource(SOURCE).span(
        width
    ).height(height)
    if panel.kind != "heat":  # a heat map has its unit on the axis
        drawn.unit(panel.unit)
    if panel.empty:
        drawn.no_value(panel.empty)
    if panel.percent:
        drawn.override_by_regexp(panel.percent, [models.DynamicConfigValue("unit", "percentunit")])
    for reference, (legend, expression) in zip(_references(), panel.queries.items(), strict=False):
        query = (
            prometheus.Dataquery()
            .expr(expression)
            .legend_format(legend)
            .ref_id(reference)
            .datasource(SOURCE)
        )
        match panel.kind:
            case "table":
                query.instant().format(PromQueryFormat.TABLE)
            case "names":
                query.instant()
            case "heat":
                query.range().format(PromQueryFormat.HEATMAP)
            case _:
                query.range()
        drawn.with_target(query)
    return drawn


def _references() -> Iterator[str]:
    return map(chr, count(ord("A")))


def _description(panel: Panel) -> str:
    metrics = dict.fromkeys(
        re.findall(r"\bray_raysync_\w+?(?=_bucket|_count|\b)", " ".join(panel.queries.values()))
    )
    return "\n\n".join(filter(None, (panel.note, *(HELP[name] for name in metrics))))


def _lines(panel: Panel) -> timeseries.Panel:
    lines = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(20 if panel.stacked else 0)
        .show_points(looks.VisibilityMode.NEVER)
        .min(0)
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.LIST)
            .show_legend(True)
            .placement(looks.LegendPlacement.BOTTOM)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(looks.TooltipDisplayMode.MULTI)
            .sort(looks.SortOrder.DESCENDING)
        )
    )
    if panel.top is not None:
        lines.max(panel.top)
    if panel.stacked:
        lines.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))
    if panel.dashed:
        dash = {"fill": "dash", "dash": [8, 6]}
        lines.override_by_regexp(
            panel.dashed, [models.DynamicConfigValue("custom.lineStyle", dash)]
        )
    return lines


def _latest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _numbers(text: looks.BigValueTextMode) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(_latest())
        .color_mode(looks.BigValueColorMode.NONE)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .text_mode(text)
    )


def _bars(panel: Panel) -> bargauge.Panel:
    bars = (
        bargauge.Panel()
        .reduce_options(_latest())
        .orientation(looks.VizOrientation.HORIZONTAL)
        .min(0)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
    )
    return bars if panel.top is None else bars.max(panel.top)


def _heat(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(False)
        .hide_y_histogram()
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues"))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit).axis_placement(looks.AxisPlacement.LEFT))
    )


def _states() -> statetimeline.Panel:
    names = {
        "1": models.ValueMappingResult(text="in force", color="green"),
        "0": models.ValueMappingResult(text="not in force", color="transparent"),
    }
    return (
        statetimeline.Panel()
        .mappings([models.ValueMap(options=names)])
        .merge_values(True)
        .line_width(0)
        .fill_opacity(70)
        .legend(common.VizLegendOptions().show_legend(False))
    )


def _table(panel: Panel) -> table.Panel:
    """Return a table of instant queries side by side: Grafana merges rows whose labels agree, and
    names a value after its query's letter.
    """
    columns = dict(zip(_references(), panel.queries, strict=False))
    value = "Value #" if len(columns) > 1 else "Value"
    names = {
        f"{value}{reference if len(columns) > 1 else ''}": legend
        for reference, legend in columns.items()
    }
    organised = {"excludeByName": {"Time": True}, "renameByName": names}
    drawn = (
        table.Panel()
        .align(looks.FieldTextAlignment.AUTO)
        .inspect(False)
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(models.DataTransformerConfig("organize", options=organised))
    )
    for column, unit in panel.units.items():
        drawn.override_by_name(column, [models.DynamicConfigValue("unit", unit)])
    if panel.link:
        drawn.override_by_name(
            panel.link,
            [
                models.DynamicConfigValue(
                    "links",
                    [
                        {
                            "title": "this run",
                            "url": "/d/raysync-run?var-run=${__value.raw}&${__url_time_range}",
                        }
                    ],
                )
            ],
        )
    return drawn

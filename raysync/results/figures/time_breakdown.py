"""The figures of the workers' time: its parts, contributions, and dropped pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from raysync.core.ids import Slot
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axis,
    bar,
    heading,
    numbers,
    plain,
    row_names,
    rows_layout,
)

SECTION = "What the workers did"
MOST_WORKERS = 10  # more workers are displayed by group

# the heights of one paradigm's bar beside others, between reasons, and above and below all bars
BAR_PX, BETWEEN_PX, AROUND_BARS_PX = 16, 16, 110

# column -> name, opacity in percent
ACTIVITIES = {
    "busy_s": ("computing", 100),
    "transfer_s": ("transfer", 60),
    "server_s": ("the server", 38),
    "wait_s": ("waiting", 18),
}

# for bars side by side for each worker
BARS_LAYOUT = {
    "barmode": "group",
    "bargroupgap": 0.05,
    "xaxis": {"type": "category", "showgrid": False},
}


def figures(all_series: Sequence[Series]) -> list[Figure | None]:
    pushed = [series for series in all_series if any(map(len, series.pushes))]
    if not pushed:
        return []
    return [
        _time_figure(pushed),
        _contribution_figure(pushed),
        _drop_reason_figure(pushed),
        _drop_share_figure(pushed),
    ]


def _time_figure(all_series: Sequence[Series]) -> Figure:
    tables = _means(all_series, time_parts)
    many = _has_many_workers(tables)
    tables = [_by_group(table, "mean") for table in tables] if many else tables
    traces: list[Trace] = []
    for series, table in zip(all_series, tables, strict=True):
        names = row_names(series, map(str, table.index))
        traces.append(heading(series, names, [0.0]))
        total = table[list(ACTIVITIES)].sum(axis=1)
        for column, (activity, percent) in ACTIVITIES.items():
            shares = 100 * table[column] / total.where(total > 0, 1.0)
            traces.append(
                bar(
                    series,
                    orientation="h",
                    showlegend=column == "busy_s",
                    marker={"color": series.pale(percent)},
                    y=list(names.values()),
                    x=numbers(table[column]),
                    text=[
                        f"{activity}, {share:.3g} % of {plain(slot)}'s time"
                        for slot, share in shares.items()
                    ],
                    textposition="none",
                    hovertemplate="%{x} s %{text}<extra></extra>",
                )
            )
    longest = max(float(table[list(ACTIVITIES)].sum(axis=1).max()) for table in tables)
    rows = sum(len(table) + 1 for table in tables)
    transfer = any(table.transfer_s.any() for table in tables)
    server = any(table.server_s.any() for table in tables)
    of = "of a worker of each group, on average" if many else "of each worker"
    return Figure(
        key="spending",
        section=SECTION,
        title="Where the time went",
        caption=f"Seconds {of}: computing (full colour), {'transfer (paler), ' if transfer else ''}"
        f"{'until the server had made the weights (paler still), ' if server else ''}waiting"
        " (palest)"
        + (", mean over seeds." if any(len(series.runs) > 1 for series in all_series) else "."),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.2,
            "xaxis": axis("seconds", range=[0, 1.02 * longest]),
            **rows_layout(rows),
        },
        wide=True,
    )


def time_parts(pushes: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the workers' time in a run, from `Series.pushes`.

    Returns:
        By slot: busy_s, server_s (until the server had made the weights), transfer_s (the rest
        between release and push), wait_s, and samples (applied). The four times sum to a worker's
        time from its first release to the end of its last wait.
    """
    active_s = pushes.pushed_at_s - pushes.released_at_s
    frame = pushes.assign(
        transfer_s=(active_s - pushes.busy_s - pushes.server_s).clip(lower=0.0),
        samples=pushes.samples.where(pushes.outcome == "applied", 0),
    )
    return _sums_by_slot(frame, [*ACTIVITIES, "samples"])


def _contribution_figure(all_series: Sequence[Series]) -> Figure | None:
    tables = _means(all_series, contributions)
    if max(map(len, tables)) < 2:
        return None
    sizes = _mean(tables)
    sizes = sizes.assign(equal=1.0 / len(sizes))
    many = _has_many_workers(tables)
    if many:
        tables, sizes = [_by_group(table, "sum") for table in tables], _by_group(sizes, "sum")
    traces = _shares(all_series, [table.samples for table in tables], "the samples")
    names = [plain(slot) for slot in sizes.index]
    for name, column, symbol, size in (
        ("share of speed", "speed", "diamond-open", 12),
        ("equal share", "equal", "line-ew-open", 26),
    ):
        edge = {"color": "$text", "width": 2}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": names,
                "y": numbers(100 * sizes[column]),
                "marker": {"symbol": symbol, "size": size, "color": "$text", "line": edge},
                "hovertemplate": f"{name}: %{{y}} %<extra></extra>",
            }
        )
    return Figure(
        key="contribution",
        section=SECTION,
        title="Contribution of each " + ("group of workers" if many else "worker"),
        caption="Share of the applied samples, in %. Diamond: its share of the workers'"
        " computing speed; line: an equal share.",
        traces=traces,
        layout=BARS_LAYOUT | {"yaxis": axis("% of samples", rangemode="tozero")},
    )


def contributions(pushes: pd.DataFrame) -> pd.DataFrame:
    """Return each worker's share of the applied samples, and of the speed.

    Returns:
        By slot: `samples` and `speed` (samples computed per busy second), which sum to 1 or 0.
    """
    table = time_parts(pushes)
    computed = pushes.groupby("slot").samples.sum().reindex(table.index)
    speed = (computed / table.busy_s.where(table.busy_s > 0)).fillna(0.0)
    return pd.DataFrame(
        {
            "samples": table.samples / max(1, table.samples.sum()),
            "speed": speed / (speed.sum() or 1.0),
        }
    )


def _shares(
    all_series: Sequence[Series], shares: Sequence[pd.Series[float]], what: str
) -> list[Trace]:
    """Draw each worker's share, with a bar for each paradigm."""
    return [
        bar(
            series,
            x=[plain(slot) for slot in share.index],
            y=numbers(100 * share),
            hovertemplate=f"%{{y}} % of {what}<br>%{{x}}",
        )
        for series, share in zip(all_series, shares, strict=True)
    ]


def _drop_reason_figure(all_series: Sequence[Series]) -> Figure:
    traces: list[Trace] = []
    for series in all_series:
        dropped = pd.concat([frame[frame.outcome == "dropped"] for frame in series.pushes])
        counts = dropped.reason.value_counts()
        if len(counts):
            traces.append(
                bar(
                    series,
                    orientation="h",
                    y=[plain(reason) for reason in counts.index],
                    x=numbers(counts / len(series.runs)),
                    hovertemplate="%{x} pushes a run<br>%{y}",
                )
            )
    reasons = len({reason for trace in traces for reason in trace["y"]})
    return Figure(
        key="drops",
        section=SECTION,
        title="Dropped pushes",
        caption="Pushes a run that were computed and not applied, by reason.",
        traces=traces,
        layout={
            "barmode": "group",
            "xaxis": axis("pushes a run", rangemode="tozero"),
            "yaxis": {"type": "category"},
            "height": AROUND_BARS_PX + reasons * (BETWEEN_PX + BAR_PX * len(traces)),
        },
    )


def _drop_share_figure(all_series: Sequence[Series]) -> Figure | None:
    tables = _means(all_series, drop_counts)
    if not any(table.dropped.any() for table in tables):
        return None
    many = _has_many_workers(tables)
    tables = [_by_group(table, "sum") for table in tables] if many else tables
    traces = _shares(all_series, [table.dropped / table.pushes for table in tables], "its pushes")
    whose = "group of workers" if many else "worker"
    return Figure(
        key="lost",
        section=SECTION,
        title=f"Dropped pushes of each {whose}",
        caption=(
            f"Share of the {whose}'s own pushes, in %: unequal shares bias the model towards"
            " the data of workers that lose fewer pushes."
        ),
        traces=traces,
        layout=BARS_LAYOUT | {"yaxis": axis("% of its pushes", rangemode="tozero")},
    )


def drop_counts(pushes: pd.DataFrame) -> pd.DataFrame:
    """Count `pushes` and, of these, `dropped` by slot."""
    frame = pushes.assign(pushes=1, dropped=pushes.outcome == "dropped")
    return _sums_by_slot(frame, ["pushes", "dropped"])


def _means(
    all_series: Sequence[Series], table_of: Callable[[pd.DataFrame], pd.DataFrame]
) -> list[pd.DataFrame]:
    """Return the table of each paradigm's pushes by slot, as a mean over its runs."""
    return [
        _mean([table_of(frame) for frame in series.pushes if len(frame)]) for series in all_series
    ]


def _mean(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean over runs for each worker."""
    return pd.concat(frames).groupby(level=0, sort=False).mean()


def _sums_by_slot(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    sums = frame.groupby("slot", sort=False)[columns].sum()
    return sums.loc[slots_in_order(frame.slot)]


def slots_in_order(slots: pd.Series[str]) -> list[str]:
    """Return each slot once, by group and number: gpu-2 before gpu-10."""
    return sorted(slots.unique(), key=lambda slot: (Slot(slot).group, Slot(slot).number))


def _has_many_workers(tables: Sequence[pd.DataFrame]) -> bool:
    return max(len(table) for table in tables) > MOST_WORKERS


def _by_group(frame: pd.DataFrame, how: str) -> pd.DataFrame:
    grouped = frame.groupby(lambda slot: Slot(slot).group, sort=False)
    return grouped.mean() if how == "mean" else grouped.sum()

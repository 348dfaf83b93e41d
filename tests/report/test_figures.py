"""Figures without a browser: what is drawn is what was measured, and only that."""

import json
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import raysync
from raysync.core.decisions import Note, Switch
from raysync.core.journal import Entry, decode, encode
from raysync.record.push_rows import PushRow
from raysync.record.writer import schema_of
from raysync.results.collection import collect
from raysync.results.figures import figures_of, series_of
from raysync.results.figures.colours import COLOURS, HUES, painted
from raysync.results.figures.downsample import (
    POINTS,
    binned,
    even_indices,
    extreme_indices,
    on_common_grid,
    shares_up_to,
)
from raysync.results.figures.journal_events import run_events_of
from raysync.results.figures.learning_curves import times_to
from raysync.results.figures.primitives import INVISIBLE, layout_of, numbers
from raysync.results.figures.time_breakdown import ACTIVITIES, contributions, time_parts
from tests.builders.reports import BASE, cut

FINITE = st.floats(-1e6, 1e6)
CURVES = st.lists(FINITE, min_size=1, max_size=60).map(np.array)


def figures_by_key(collection, scenario=""):
    series = series_of(collection.paradigms, collection.scenarios[scenario])
    return {figure.key: figure for figure in figures_of(series, collection.criteria(scenario))}


def of(figure, index):
    """The traces of a paradigm."""
    return [trace for trace in figure.traces if trace.get("legendgroup") == str(index)]


@pytest.fixture(scope="module")
def figures(runs):
    return figures_by_key(runs)


@pytest.fixture(scope="module")
def series(runs):
    return series_of(runs.paradigms, runs.scenarios[""])


# ---- what is measured ----


def test_a_workers_times_sum_to_its_time(series):
    """Computing, transfer, the server and waiting of each life: from its first release to the end
    of its last wait.
    """
    for one in series:
        for pushes in one.pushes:
            lives = (
                pushes.assign(end=pushes.pushed_at_s + pushes.wait_s)
                .groupby("worker")
                .agg(slot=("slot", "first"), begin=("released_at_s", "min"), end=("end", "max"))
            )
            there = (lives.end - lives.begin).groupby(lives.slot).sum()
            sums = time_parts(pushes)[list(ACTIVITIES)].sum(axis=1)
            pd.testing.assert_series_equal(sums.sort_index(), there.sort_index(), check_names=False)
            assert (time_parts(pushes) >= 0).all(axis=None)


def test_a_workers_samples_are_those_that_were_applied(series):
    for one in series:
        for run, pushes in zip(one.runs, one.pushes, strict=True):
            assert time_parts(pushes).samples.sum() == run.record.summary["samples"]


def test_shares_sum_to_one(series):
    for one in series:
        for pushes in one.pushes:
            assert contributions(pushes).sum().to_list() == pytest.approx([1.0, 1.0])


def test_the_bars_show_the_frames(figures, series):
    for one in series:
        bars = [trace for trace in of(figures["spending"], one.index) if trace["type"] == "bar"]
        parts = [time_parts(pushes)[list(ACTIVITIES)].sum(axis=None) for pushes in one.pushes]
        assert sum(sum(bar["x"]) for bar in bars) == pytest.approx(np.mean(parts), rel=1e-3)


def test_bars_of_a_lane_follow_one_another(figures, series):
    """Nobody does two things at a time; and what is drawn is of iterations in or across a view."""
    figure = figures["timeline"]
    bars = sorted(
        (lane, base, base + length)
        for trace in figure.traces
        if trace["type"] == "bar"
        for lane, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
    )
    assert len(bars) > 50
    for (lane, _, end), (following, begin, _) in pairwise(bars):
        assert lane != following or begin >= end - 1e-5
    pushes = pd.concat([frame for one in series for frame in one.pushes])
    longest = (pushes.pushed_at_s - pushes.released_at_s + pushes.wait_s).max()
    assert all(
        any(end >= view.low - longest and begin <= view.high + longest for view in figure.views)
        for _, begin, end in bars
    )


def test_the_timeline_says_why_somebody_waits(figures):
    texts = [
        text
        for trace in figures["timeline"].traces
        if trace["type"] == "bar" and "waiting" in trace["hovertemplate"]
        for text in trace["text"]
    ]
    assert texts
    assert sum(map(bool, texts)) > 0.9 * len(texts)  # the rest waited for the end, or died


@settings(max_examples=60)
@given(CURVES, st.lists(FINITE, min_size=1, max_size=20), st.booleans())
def test_time_to_a_target_is_that_of_the_first_that_met_it(values, targets, rises):
    times = np.arange(len(values), dtype=float)
    found = times_to(times, values, np.array(targets), rises=rises)
    for target, at in zip(targets, found, strict=True):
        met = [
            t for t, y in zip(times, values, strict=True) if (y >= target if rises else y <= target)
        ]
        assert at == (met[0] if met else np.inf)
    order = np.argsort(targets if rises else np.negative(targets))
    assert (found[order][1:] >= found[order][:-1]).all()


def test_a_curve_ends_where_the_measuring_did(figures, series):
    for one in series:
        ends = [
            run.record.evaluations["at"].max() - run.record.pushes.released_at_s.min()
            for run in one.runs
        ]
        for trace in of(figures["accuracy-time"], one.index):
            assert max(trace["x"]) <= min(ends) * 1.001


def test_the_ends_of_the_accuracy_curves(runs, figures):
    """At the last samples stands the mean of the final accuracies, and the band reaches from the
    lowest to the highest.
    """
    for index, paradigm in enumerate(runs.paradigms):
        finals = [100 * run.value("final_accuracy") for run in runs.scenarios[""][paradigm]]
        band, mean = of(figures["accuracy-samples"], index)
        # Seeds end at slightly different samples.
        assert mean["y"][-1] == pytest.approx(np.mean(finals), abs=1.0)
        half = len(band["x"]) // 2
        high, low, middle = (np.array(y) for y in (band["y"][:half], band["y"][half:], mean["y"]))
        assert (low[::-1] <= middle * 1.001).all()
        assert (middle <= high * 1.001).all()


def test_the_largest_lead_is_shown(series, figures):
    for one in series:
        top = np.mean([frame.lead.max() for frame in one.pushes])
        [curve] = [each for each in of(figures["lead-time"], one.index) if not each.get("fill")]
        assert max(curve["y"]) <= top + 1e-9
        steps, *_ = of(figures["lead-distribution"], one.index)
        assert steps["y"][-1] == 100
        assert steps["y"] == sorted(steps["y"])


# ---- thinning ----


@settings(max_examples=60)
@given(st.lists(FINITE, min_size=1, max_size=400), st.integers(8, 60))
def test_thinning_keeps_ends_and_extremes(values, points):
    y = np.array(values)
    chosen = extreme_indices(y, points)
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) <= points
    assert {0, len(y) - 1} <= set(chosen)
    assert {y.min(), y.max()} <= set(y[chosen])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 50), min_size=1, max_size=20, unique=True), st.integers(0, 9)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_curves_meet_on_common_ground(drawn):
    # Straight lines stay straight.
    curves = [(sorted(x), [slope * value for value in sorted(x)]) for x, slope in drawn]
    grid, values = on_common_grid(curves)
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    assert all(low <= x <= high for x in grid)
    for row, (_, slope) in zip(values, drawn, strict=True):
        assert row == pytest.approx(slope * grid)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 30)), min_size=2, max_size=200),
    st.integers(1, 20),
)
def test_bins_hold_what_falls_into_them(points, bins):
    times, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    middles, tops = binned([times], [values], "max", bins)
    _, means = binned([times], [values], "mean", bins)
    width = times.max() / bins
    assert tops.max() == values.max()
    assert (means <= tops + 1e-9).all()
    for middle, mean in zip(middles, means[0], strict=True):
        near = values[np.abs(times - middle) <= width / 2 * (1 + 1e-6)]
        assert near.min() - 1e-9 <= mean <= near.max() + 1e-9


@given(st.lists(st.integers(0, 20), min_size=1, max_size=100))
def test_cumulative_shares(values):
    found, shares = shares_up_to(values)
    assert [np.mean(np.array(values) <= value) for value in found] == pytest.approx(list(shares))


@given(st.integers(0, 2_000))
def test_evenly(count):
    chosen = even_indices(count)
    assert len(chosen) <= POINTS
    assert not count or (chosen[0], chosen[-1]) == (0, count - 1)


@given(FINITE)
def test_numbers_are_short_and_near(value):
    [short] = numbers([value])
    assert short == pytest.approx(value, rel=5e-4, abs=0)
    assert len(f"{short:e}".rstrip("0")) <= 16


def test_what_is_not_finite_is_null():
    assert numbers([np.nan, np.inf, 2.0]) == [None, None, 2]


def test_no_trace_is_long(sweep, figures):
    every = [*figures.values(), *figures_by_key(sweep, next(iter(sweep.scenarios))).values()]
    for figure in every:
        if figure.key != "timeline":
            assert all(len(trace["x"]) <= 2 * POINTS + 2 for trace in figure.traces), figure.key


# ---- which figures there are ----

EVERY_RUN = {
    "accuracy-time",
    "accuracy-samples",
    "time-to-accuracy",
    "spending",
    "contribution",
    "timeline",
}
LEADS = {"lead-time", "lead-distribution", "staleness-time", "staleness-distribution"}


def test_every_figure_is_there_valid_and_said_in_a_line(figures):
    assert set(figures) == EVERY_RUN | LEADS | {"predicted-wait", "granted", "happenings"}
    for figure in figures.values():
        complete = painted({"data": figure.traces, "layout": layout_of(figure)})
        go.Figure(complete)  # raises on what Plotly does not know
        json.dumps(complete, allow_nan=False)
        assert figure.caption.endswith(".")
        assert "\n" not in figure.caption
        assert figure.traces


def test_a_paradigm_can_be_hidden_everywhere(figures, runs):
    numbers_of_paradigms = set(map(str, range(len(runs.paradigms))))
    for figure in figures.values():
        loose = [trace["name"] for trace in figure.traces if "legendgroup" not in trace]
        assert loose in ([], ["share of speed", "equal share"])
        owned = [trace for trace in figure.traces if "legendgroup" in trace]
        there = {trace["legendgroup"] for trace in owned}
        assert there <= numbers_of_paradigms
        legend = [trace["legendgroup"] for trace in owned if trace.get("showlegend", True)]
        assert sorted(legend) == sorted(there), f"{figure.key}: once each in a legend"


def test_lanes_of_two_paradigms_are_not_the_same(figures):
    owners = {}
    for trace in figures["timeline"].traces:
        for lane in trace["y"]:
            assert owners.setdefault(lane, trace["legendgroup"]) == trace["legendgroup"]
    assert {lane.rstrip(INVISIBLE) for lane in owners} == {"", "fast-0", "fast-1", "slow-0"}


def test_one_paradigm_that_never_waits_has_no_empty_figures(sweep):
    scenario, groups = next(iter(sweep.scenarios.items()))
    bsp = series_of(sweep.paradigms, {"bsp": groups["bsp"][:1]})
    figures = figures_of(bsp, sweep.criteria(scenario))
    assert {figure.key for figure in figures} == EVERY_RUN
    # One seed: no band.
    assert not any(trace.get("fill") for figure in figures for trace in figure.traces)


def test_where_nothing_is_learnt_there_is_no_accuracy(tmp_path, torch_of_one_thread):
    """And a run that was killed does not end the curve of those that finished."""
    settings = {"output": str(tmp_path), "timing": "only", "paradigm": "asp", "target": None}
    for seed in (0, 1):
        record = raysync.run(BASE | settings | {"seed": seed})
    (record.path / "summary.json").unlink()
    cut(record.path / "journal.jsonl")
    figures = figures_by_key(collect([tmp_path / "tiny"]))
    assert set(figures) == {"samples-time", "spending", "contribution", "timeline"} | LEADS
    [work] = figures["samples-time"].traces
    assert work["y"][-1] == pytest.approx(1600, rel=0.05)


def test_of_tokens_perplexity_falls(tmp_path, torch_of_one_thread):
    raysync.run(
        BASE
        | {
            "output": str(tmp_path),
            "model": {"name": "char-lm", "width": 16, "layers": 1, "heads": 2},
            "data": {"name": "text", "parameters": {"context": 16}},
            "workload": {"samples": 320},
            "target": {"metric": "loss", "at_most": 3.0},
            "paradigm": "bsp",
            "evaluation": {"marks": 4, "samples": 16},
        }
    )
    figures = figures_by_key(collect([tmp_path / "tiny"]))
    assert {"perplexity-time", "perplexity-samples", "time-to-perplexity"} <= set(figures)
    assert figures["perplexity-time"].layout["yaxis"]["type"] == "log"
    assert figures["perplexity-time"].layout["shapes"][0]["y0"] == pytest.approx(np.exp(3.0))
    [trace] = figures["time-to-perplexity"].traces
    assert trace["x"] == sorted(trace["x"])
    assert trace["y"] == sorted(trace["y"], reverse=True)


def test_drops_are_counted_by_reason(own_copy):
    for record in own_copy.iterdir():
        pushes = pd.read_parquet(record / "pushes.parquet")
        late = pushes.index < 4
        changed = pushes.assign(
            outcome=pushes.outcome.mask(late, "dropped"), reason=pushes.reason.mask(late, "<late>")
        )
        table = pa.Table.from_pandas(changed, schema_of(PushRow), preserve_index=False)
        pq.write_table(table, record / "pushes.parquet")
    collection = collect([own_copy])
    all_series = series_of(collection.paradigms, collection.scenarios[""])
    for series in all_series:
        assert all(
            time_parts(frame).samples.sum() == frame[frame.outcome == "applied"].samples.sum()
            for frame in series.pushes
        )
    figures = figures_by_key(collection)
    assert [(trace["x"], trace["y"]) for trace in figures["drops"].traces] == [
        ([4], ["&lt;late&gt;"])
    ] * 3, "reasons that differ behind a colon are one"
    for trace, series in zip(figures["lost"].traces, all_series, strict=True):
        frame = pd.concat(series.pushes)
        shares = [
            100 * (frame[frame.slot == slot].outcome == "dropped").mean() for slot in trace["x"]
        ]
        assert trace["y"] == pytest.approx(shares, rel=1e-3)
        assert max(shares) > min(shares) >= 0


def test_a_run_that_diverged_is_drawn_by_itself(sweep):
    scenario = next(run.scenario for run in sweep.runs if run.status == "diverged")
    figures = figures_by_key(sweep, scenario)
    dotted = [
        trace for trace in figures["accuracy-samples"].traces if trace["line"].get("dash") == "dot"
    ]
    assert [trace["hovertemplate"].partition("<br>")[2] for trace in dotted] == ["seed 3: diverged"]
    assert "did not finish" in figures["accuracy-samples"].caption


def test_a_run_that_did_not_come_to_a_push_is_no_obstacle(own_copy):
    first, second, *_ = sorted(own_copy.iterdir())
    # Killed at once, killed after the first workers had joined.
    for record, lines in ((first, 1), (second, 3)):
        (record / "summary.json").unlink()
        journal = record / "journal.jsonl"
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:lines]))
    figures = figures_by_key(collect([own_copy]))
    assert set(figures) >= EVERY_RUN | LEADS
    alone = collect([first])
    assert set(figures_by_key(alone)) == set()


# ---- the events of a run ----


@pytest.mark.parametrize("opening", [0, 4_000])
def test_switches_and_notes_of_any_kind_are_marked(own_copy, monkeypatch, opening):
    """Also behind the opening of a long journal."""
    monkeypatch.setattr("raysync.results.figures.journal_events.OPENING", opening)

    added = {
        21: Switch("asp", "half of it is done"),
        41: Note("straggler", "slow-0#1", {"share": 0.51234567, "<b>": 1}),
    }
    for journal in own_copy.glob("*/journal.jsonl"):
        lines = journal.read_text().splitlines()
        for number, decision in added.items():
            entry = decode(lines[number])
            decisions = (*entry.decisions, decision)
            lines[number] = encode(Entry(entry.event, decisions, entry.report))
        journal.write_text("\n".join(lines) + "\n")
    figures = figures_by_key(collect([own_copy]))
    texts = [text for trace in figures["happenings"].traces for text in trace["text"]]
    assert texts.count("switch, to asp, because half of it is done") == 6  # one a run
    assert texts.count("straggler slow-0#1, share 0.5123, &lt;b&gt; 1") == 6
    assert "◆ switch" in figures["happenings"].caption
    assert [
        trace
        for trace in figures["accuracy-time"].traces
        if trace.get("marker", {}).get("symbol") == "diamond"
    ]


def test_a_long_journal_is_told_alike(series, monkeypatch):
    """Past its opening only telling lines are read: nothing but reasons for holding is lost."""
    monkeypatch.setattr("raysync.results.figures.journal_events.OPENING", 0)
    for one in series:
        for run, events in zip(one.runs, one.run_events, strict=True):
            short = run_events_of(run.record, run.record.pushes.released_at_s.min())
            assert short.happenings == events.happenings
            assert short.holds.items() <= events.holds.items()


# ---- colours ----

MACHADO = {
    "full": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour):
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(
        float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_seen(theme):
    colours = COLOURS[theme]
    assert all(contrast(colours[str(hue)], colours["card"]) >= 3 for hue in range(HUES))
    assert contrast(colours["text"], colours["card"]) >= 7
    assert all(
        contrast(colours[name], colours[ground]) >= 4.5
        for name in ("muted", "bad")
        for ground in ("card", "page")
    )


@pytest.mark.parametrize("vision", MACHADO)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_apart(theme, vision):
    def oklab(colour):
        return LAB @ np.cbrt(LMS @ np.clip(MACHADO[vision] @ linear(colour), 0, 1))

    hues = [oklab(COLOURS[theme][str(hue)]) for hue in range(HUES)]
    far = [np.linalg.norm(one - other) for one, other in combinations(hues[:5], 2)]
    assert min(far) >= (0.08 if vision == "tritanopia" else 0.13)
    assert min(np.linalg.norm(one - other) for one, other in combinations(hues, 2)) >= 0.05


def test_a_worker_may_be_called_like_a_colour():
    trace = {"y": ["$0"], "name": "$text", "marker": {"color": "$0/25", "line": {"color": "$text"}}}
    assert painted(trace, "light") == {
        "y": ["$0"],
        "name": "$text",
        "marker": {"color": "rgba(34,95,214,0.25)", "line": {"color": "#1c2430"}},
    }

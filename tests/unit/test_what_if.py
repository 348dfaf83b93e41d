"""`raysync whatif`: predictions against closed forms, a pencil, direct runs and known means; the
command, its page and its JSON.
"""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from math import isclose

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import raysync
from raysync import config
from raysync.cli.console import console
from raysync.config import Link, ParadigmChoice
from raysync.predict import compared_candidates, report, what_if as prediction
from raysync.predict.candidates import Candidate, paradigms_in, standard_paradigms
from raysync.predict.exchange import Exchange
from raysync.predict.intervals import ratio
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.processes import pool
from raysync.predict.report import lone_worker_text
from raysync.predict.simulation import Blocks, simulate
from raysync.predict.step_times.rank_step_times import RankStepTimes, read
from raysync.predict.variations import server_choices
from raysync.predict.what_if import PredictionOptions, predict
from raysync.record.measures import Measures
from raysync.results.figures.colours import painted
from raysync.results.figures.primitives import layout_of
from tests.builders.messages import tells
from tests.builders.virtual import run, timed

STANDARD = standard_paradigms(5)
BSP, ASP = ParadigmChoice(name="bsp"), ParadigmChoice(name="asp")


def times(*ranks):
    return RankStepTimes("a test", {f"rank-{n}": tuple(steps) for n, steps in enumerate(ranks)})


def random_times(ranks, steps, seed=0, sigma=0.5):
    drawn = np.random.default_rng(seed).lognormal(0, sigma, (ranks, steps))
    return times(*drawn.tolist())


def simulation(steps, choice, steps_each):
    setting = MeasuredRanks(steps.steps, 1, steps_each).setting(Candidate(choice))
    return simulate(setting.training, choice)


def width(interval):
    return (interval.high - interval.low) / interval.value


def told(answer):
    return " ".join(report.sentences(answer))


# ---- numbers ----


def test_constant_steps_a_barrier_takes_the_longest_and_without_one_rates_add_up():
    answer = predict(times([1.0], [2.0]), PredictionOptions(8, 150, 36.0), [BSP, ASP])
    bsp, asp = answer.comparison.predictions
    assert (bsp.seconds, asp.seconds) == (300, 200)
    assert bsp.samples_per_s.value == pytest.approx(8 * 2 / 2)
    assert asp.samples_per_s.value == pytest.approx(8 * 1.5)
    assert bsp.wait_fraction.value == pytest.approx(150 / 600)
    assert bsp.waiting == {"rank-0": pytest.approx(0.5), "rank-1": 0}
    assert bsp.lost_worker_hours.value == pytest.approx(150 / 3600)
    money = json.loads(report.as_json(answer))["paradigms"][0]["lost_money"]
    assert money["value"] == pytest.approx(1.5)
    assert bsp.worker_hours == pytest.approx(600 / 3600)
    assert (asp.wait_fraction.value, asp.lost_worker_hours.value) == (0, 0)
    assert (bsp.staleness_max, bsp.lead_max, asp.lead_max) == (0, 0, 100)
    for interval in (bsp.samples_per_s, bsp.wait_fraction, bsp.lost_worker_hours):
        assert interval.low == pytest.approx(interval.value)
        assert interval.high == pytest.approx(interval.value)


@given(counts=st.dictionaries(st.text(min_size=1), st.integers(0, 1000)))
def test_a_worker_is_alone_if_it_makes_nine_tenths_of_the_pushes(counts):
    said = lone_worker_text("asp", counts)
    total, most = sum(counts.values()), max(counts.values(), default=0)
    assert (said is not None) == (len(counts) > 1 and total > 0 and most >= 0.9 * total)


def test_a_rank_that_trains_nearly_alone_is_named():
    answer = predict(times([1.0], [20.0], [30.0]), PredictionOptions(8, 100), [BSP, ASP])
    bsp, asp = answer.comparison.predictions
    assert bsp.applied == dict.fromkeys(["rank-0", "rank-1", "rank-2"], 100)
    assert sum(asp.applied.values()) == 300
    assert tells(told(answer), f"asp rank-0 {asp.applied['rank-0']} 300")


def test_a_table_by_pencil():
    """a: 1 3 2, b: 4 1 2. Rounds take 4, 3 and 2 s, in which a waits for 3, 0, 0 and b for 0, 2, 0.
    Without a barrier a pushes at 1, 4, 6, (its steps again) 7, and b at 4, 5, 7: the sixth at 7.
    """
    answer = predict(times([1, 3, 2], [4, 1, 2]), PredictionOptions(), [BSP, ASP])
    bsp, asp = answer.comparison.predictions
    assert (bsp.seconds, asp.seconds) == (9, 7)
    assert bsp.wait_fraction.value == pytest.approx(5 / 18)
    assert bsp.lost_worker_hours.value == pytest.approx(5 / 3600)
    assert bsp.samples_per_s.low is None  # too short


@pytest.mark.parametrize("batch_size", [None, 30])
def test_batches_by_speed_let_rates_add_up_without_staleness(batch_size):
    """A step of 1 s and one of 2 s: 1.5 steps a second, but for the first round. It does not
    matter that nobody says how many samples a step has.
    """
    answer = predict(times([1.0], [2.0]), PredictionOptions(batch_size, 300), ())
    found = {each.label: each for each in answer.comparison.predictions}
    balanced = found["balanced"]
    assert balanced.samples_per_s.value == pytest.approx(1.5 * answer.ranks.samples, rel=0.005)
    assert (balanced.staleness_max, balanced.dropped) == (0, 0)
    assert found["bsp"].samples_per_s.value == pytest.approx(answer.ranks.samples)


def test_one_more_rank_is_what_a_larger_table_says():
    """For the fastest, and the fastest without staleness; it takes the steps of the group's middle
    rank.
    """
    steps = {"a-0": (1.0, 2.0), "a-1": (2.0, 1.9), "a-2": (3.0, 3.0), "b-0": (5.0, 4.0)}
    options = PredictionOptions(batch_size=8, steps=60)
    now = predict(RankStepTimes("a test", steps), options, [BSP, ASP]).comparison
    for group, extra, like in (("a", "a-3", "a-1"), ("b", "b-1", "b-0")):
        whole = dict(sorted({**steps, extra: steps[like]}.items()))
        # on the same work
        fewer = replace(options, steps=48)
        again = predict(RankStepTimes("a test", whole), fewer, [BSP, ASP]).comparison
        changes = [each for each in now.changes if each.what.endswith(f"group {group}")]
        larger = {change.candidate.label: change.samples_per_s for change in changes}
        expected = {one.label: one.samples_per_s.value for one in again.predictions}
        assert larger == pytest.approx(expected)


def test_a_fast_rank_alone_is_said_where_it_beats_all_together():
    """Of steps of 1 s and of 9 s a barrier leaves 2 / 9 of a step a second."""
    answer = predict(times([1.0], [9.0]), PredictionOptions(8, 60), [BSP])
    alone = {change.what: change.samples_per_s for change in answer.comparison.changes}
    assert alone["with rank-0 alone"] == pytest.approx(8)
    assert tells(told(answer), "rank-0 alone 4.5")
    even = predict(times([1.0], [1.5]), PredictionOptions(8, 60), [BSP])
    assert "alone is faster" not in told(even)


def test_updates_that_are_larger_than_those_of_bsp_are_said():
    choices = paradigms_in(["bsp", "asp", "{name: k-batch-sync, k: 8}"])
    answer = predict(times([1.0], [4.0]), PredictionOptions(8, 100), choices)
    assert [one.label for one in answer.comparison.best] == ["asp", "k-batch-sync(k=8)"]
    assert tells(told(answer), "k-batch-sync(k=8) 4.00 bsp bsp")
    usual = predict(times([1.0], [4.0]), PredictionOptions(8, 100), [BSP, ASP])
    assert "times the samples" not in told(usual)


def test_many_local_steps_have_rounds_enough_for_an_interval():
    """Each of 100 measured steps is taken several times."""
    choices = paradigms_in(["bsp", "{name: local, paradigm: bsp, steps: 32}"])
    answer = predict(random_times(3, 100), PredictionOptions(8), choices)
    bsp, local = answer.comparison.predictions
    assert local.samples_per_s.low < local.samples_per_s.value < local.samples_per_s.high
    assert local.samples_per_s.value > bsp.samples_per_s.value
    assert local.update_samples == pytest.approx(32 * bsp.update_samples, rel=0.02)
    assert local.worker_hours < bsp.worker_hours  # both of the same work


def test_dropped_pushes_are_lost_by_pencil():
    """k = 1: each push of a (1 s) ends a round; those of b (1.4 s) at 1.4, 2.8, 4.2 and 5.6 are
    late. Six updates take 6 s.
    """
    choices = paradigms_in(["{name: k-sync, k: 1}"])
    answer = predict(times([1.0], [1.4]), PredictionOptions(steps=3), choices)
    [k_sync] = answer.comparison.predictions
    assert (k_sync.seconds, k_sync.dropped) == (6, 4)
    assert k_sync.lost_worker_hours.value * 3600 == pytest.approx(4 * 1.4)
    assert k_sync.samples_per_s.value == pytest.approx(MeasuredRanks({}, None, 1).samples)


@pytest.mark.parametrize(
    "choice",
    [choice for choice in STANDARD if choice.name != "local"],  # whose work is longer
    ids=lambda choice: choice.label,
)
def test_a_prediction_is_the_virtual_run_of_the_same_trace(choice):
    steps = random_times(5, 40)
    found = simulation(steps, choice, 40).summary
    training = timed(
        workers=[{"name": "rank", "count": 5, "trace": list(steps.steps.values())}],
        workload={"iterations_per_worker": 40},
    )
    measures = Measures(200)
    measures.feed(run(training, choice))
    assert found == measures.summary()


@pytest.mark.parametrize("choice", STANDARD, ids=lambda choice: choice.label)
def test_blocks_add_up_to_the_run(choice):
    found = simulation(random_times(5, 200), choice, 200)
    blocks, summary = found.blocks, found.summary
    assert blocks.seconds.sum() == pytest.approx(summary["seconds"])
    assert blocks.samples.sum() == summary["samples"]
    assert blocks.wait_s.sum() == pytest.approx(
        sum(worker["wait_s"] for worker in summary["per_worker"])
    )
    assert blocks.lost_s.sum() == pytest.approx(found.lost_s)
    assert blocks.staleness.sum() / blocks.applied.sum() == pytest.approx(summary["staleness_mean"])
    assert blocks.seconds.min() > 0
    fewest = 3 if choice.name == "local" else 15  # pushes have several steps
    assert fewest <= len(blocks.seconds) <= 22  # 20, and a switch
    assert set(blocks.phase) == ({0, 1} if choice.name == "sync-switch" else {0})


@pytest.mark.parametrize("choice", STANDARD, ids=lambda choice: choice.label)
def test_a_slower_clock_changes_only_seconds(choice):
    steps = random_times(5, 60)
    slower = times(*[[2 * each for each in rank] for rank in steps.steps.values()])
    one, other = (simulation(each, choice, 60).summary for each in (steps, slower))
    assert other["seconds"] == 2 * one["seconds"]
    for key in ("wait_fraction", "staleness_mean", "staleness_max", "lead_max", "dropped"):
        assert one[key] == pytest.approx(other[key])


# ---- intervals ----


def test_intervals_cover_the_mean_that_is_known():
    """The longest of four exponential steps of mean 1 takes 1 + 1/2 + 1/3 + 1/4 on average."""
    truth, covered, tried = 4 / (25 / 12), 0, 40
    for seed in range(tried):
        drawn = np.random.default_rng(seed).exponential(1, (4, 150))
        [bsp] = predict(times(*drawn.tolist()), PredictionOptions(1), [BSP]).comparison.predictions
        covered += bsp.samples_per_s.low <= truth <= bsp.samples_per_s.high
    assert 35 <= covered <= tried


def test_steps_that_are_slow_for_a_while_make_wider_intervals_than_the_same_steps_shuffled():
    slow = np.where(np.arange(600) // 100 % 2, 3.0, 1.0)
    shuffled = np.random.default_rng(0).permutation(slow)
    both = [times(*[steps.tolist()] * 2) for steps in (slow, shuffled)]
    answers = [predict(steps, PredictionOptions(), [BSP]) for steps in both]
    [whole], [mixed] = (answer.comparison.predictions for answer in answers)
    assert whole.seconds == mixed.seconds
    assert width(whole.samples_per_s) > 2 * width(mixed.samples_per_s)


@pytest.mark.parametrize("slow_s", [1.5, 500.0])
def test_a_rate_whose_interval_is_wider_than_itself_is_named(slow_s):
    """One step of 500 s among 100 of 1 s: bsp has a sixth of the rate without it."""
    steps = [1.0] * 50 + [slow_s] + [1.0] * 49
    answer = predict(times(steps, [1.0] * 100), PredictionOptions(1), [BSP, ASP])
    bsp = answer.comparison.predictions[0].samples_per_s
    assert bsp.value == pytest.approx(2 * 100 / (99 + slow_s))
    is_wide = bsp.high - bsp.low > bsp.value
    assert is_wide == (slow_s == 500)
    assert any(tells(remark, "bsp interval") for remark in answer.remarks) == is_wide


def test_of_few_blocks_an_interval_is_as_wide_as_student_s():
    drawn = np.random.default_rng(5).normal(10, 1, 8)
    ones, none = np.ones(8), np.zeros(8)
    blocks = Blocks(np.zeros(8, dtype=int), ones, drawn, none, none, none, none)
    interval = ratio(float(drawn.mean()), blocks, "samples", "seconds")
    low, high = stats.t.interval(0.95, 7, drawn.mean(), stats.sem(drawn))
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.12)
    alone = Blocks(*(values[:4] for values in vars(blocks).values()))
    assert ratio(9.0, alone, "samples", "seconds").low is None


def test_phases_are_drawn_by_themselves():
    """Of a switch between two constant paces the mean is known exactly, whatever blocks are drawn;
    drawn together they would scatter by 4 % each way."""
    choice = paradigms_in(["{name: sync-switch, fraction: 0.5}"])[0]
    found = simulation(times([1.0], [2.0]), choice, 1000)
    value = found.summary["throughput_samples_per_s"]
    assert width(ratio(value, found.blocks, "samples", "seconds")) < 0.01


# ---- sources, ranks, options ----


def test_what_a_record_of_asp_predicts_for_bsp_is_the_bsp_run_of_the_same_seed(tmp_path):
    settings = {
        "engine": "virtual",
        "timing": "only",
        "seed": 3,
        "batch_size": 16,
        "output": str(tmp_path),
        "workers": [
            {"name": "fast", "count": 2, "step_s": 0.1, "jitter": {"sigma": 0.3}},
            {"name": "slow", "step_s": 0.2, "jitter": {"sigma": 0.3}, "speed": 0.8},
        ],
    }
    asp = raysync.run({**settings, "paradigm": "asp", "workload": {"iterations_per_worker": 60}})
    steps = read([str(asp.path)])
    assert list(steps.steps) == ["fast-0", "fast-1", "slow-0"]
    assert steps.batch_size == 16
    assert sum(map(len, steps.steps.values())) == asp.summary["pushes"]
    work = {"iterations_per_worker": steps.shortest}
    bsp = raysync.run({**settings, "paradigm": "bsp", "workload": work})
    [predicted] = predict(steps, PredictionOptions(), [BSP]).comparison.predictions
    assert predicted.seconds == pytest.approx(bsp.summary["seconds"], rel=1e-12)
    assert predicted.wait_fraction.value == pytest.approx(bsp.summary["wait_fraction"], rel=1e-9)
    assert predicted.samples_per_s.value == pytest.approx(bsp.summary["throughput_samples_per_s"])
    journal = read([str(asp.path / "journal.jsonl")])
    assert journal.steps == steps.steps


def test_one_rank_is_allowed_and_said():
    answer = predict(random_times(1, 12), PredictionOptions())
    names = [each.candidate.choice.name for each in answer.comparison.predictions]
    assert set(names) == {"bsp", "local"}
    assert "is the fastest" not in told(answer)


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [
        (["fast-0", "fast-1", "slow-0"], ["fast-0", "fast-1", "slow-0"]),
        (["a", "b"], ["rank-0", "rank-1"]),
        (["gpu-1", "gpu-0"], ["rank-0", "rank-1"]),
        (["a-0", "b-0", "a-1"], ["rank-0", "rank-1", "rank-2"]),
        (["0 (10.0.0.1 ab)", "x/y-0"], ["rank-0", "rank-1"]),
    ],
)
def test_ranks_that_are_called_like_workers_keep_their_names(ranks, slots):
    steps = {rank: (float(number),) for number, rank in enumerate(ranks, 1)}
    measured = MeasuredRanks(steps, batch_size=1, steps_each=1)
    experiment = measured.experiment
    assert list(experiment.slots()) == slots
    assert list(measured.names.items()) == list(zip(slots, ranks, strict=True))
    traces = [each for group in experiment.workers for each in group.trace]
    assert traces == list(steps.values())


@pytest.mark.parametrize("workers", [1, 2, 3, 64, 1000])
def test_the_standard_paradigms_work_with_any_number_of_ranks(workers):
    choices = standard_paradigms(workers)
    assert len(choices) >= (10 if workers > 1 else 1)
    assert not any(choice.make().infeasible_reason(workers) for choice in choices)


def test_several_processes_answer_the_same(monkeypatch):
    monkeypatch.setattr(compared_candidates, "FEWEST_PUSHES", 0)
    steps, seen = random_times(3, 20), []
    choices = [BSP, ASP]
    alone = predict(steps, PredictionOptions(processes=1), choices)
    options = PredictionOptions(processes=2)
    together = predict(steps, options, choices, lambda *done: seen.append(done))
    assert together.comparison.predictions == alone.comparison.predictions
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("means", "slow", "factor"),
    [((1, 2), "rank-1", 2), ((3, 1, 2), "rank-0", 1.5), ((1, 1, 4, 8), "rank-3", 8)],
)
def test_the_slowest_is_compared_with_a_rank_that_there_is(means, slow, factor):
    assert prediction.slowest(times(*[[float(mean)] for mean in means])) == (slow, factor)


@pytest.mark.parametrize("may_wait", [True, False])
@pytest.mark.parametrize("last", [1.0, 1.01, 1.5])
def test_where_waiting_may_hide_who_is_slow_no_rank_is_named(may_wait, last):
    steps = RankStepTimes("a test", {"a": (1.0,) * 9, "b": (last,) * 9}, may_wait=may_wait)
    answer = predict(steps, PredictionOptions(), [BSP])
    is_hidden = may_wait and last < 1.5
    assert prediction.may_hide_waits(steps) == is_hidden
    assert ("slowest rank is" in told(answer)) == (not is_hidden)
    assert len(answer.remarks) == 1 + is_hidden  # another is that there are few steps


def test_a_pool_ignores_ctrl_c_as_long_as_its_command_does():
    """A shell lets a command in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pool(1) as executor:
            assert executor.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# ---- the command ----


@pytest.fixture
def table(tmp_path):
    drawn = np.random.default_rng(0).lognormal(0, 0.2, (60, 4))
    drawn[:, 2] *= 2
    lines = [",".join(f"{each:.6f}" for each in row) for row in drawn]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(["a,b,c,d", *lines]))
    return path


def test_the_command_prints_a_table_and_what_it_rests_on(call, table, monkeypatch):
    monkeypatch.setattr(console, "_width", 160)  # no label is folded
    code, out, err = call("whatif", "steps.csv", "--batch-size", "32", "--price-per-hour", "2")
    assert (code, err) == (0, "")
    assert re.search(r"^asp is the fastest: [\d.]+ ± [\d.]+ samples per second", out)
    assert tells(out, "slowest c:")
    for label in (choice.label for choice in standard_paradigms(4)):
        assert label in out
    assert re.search(r"lost *\n.*money", out)
    assert tells(out, "steps.csv 4 60 Workload: 240 32")
    assert tells(out, "gradients")


def test_the_columns_of_a_table_are_those_that_the_user_says(call, table):
    (table.parent / "long.csv").write_text("node,card,no,took\na,0,1,250\na,1,1,500\n")
    said = "worker=node,card,step=no,seconds=took,unit=ms"
    bsp = ["--paradigm", "bsp", "--batch-size", "1", "--json"]
    code, out, err = call("whatif", "long.csv", "--columns", said, *bsp)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert tells(answer["source"], "long.csv ms")
    assert answer["paradigms"][0]["samples_per_s"]["value"] == pytest.approx(4)


def test_the_json_has_what_the_table_has(call, table):
    code, out, err = call(
        "whatif", "steps.csv", "--json", "--paradigm", "bsp", "--paradigm", "{name: ssp}"
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert [each["paradigm"] for each in answer["paradigms"]] == ["bsp", "ssp"]
    bsp = answer["paradigms"][0]
    assert bsp["samples_per_s"] is None
    rate = bsp["steps_per_s"]
    assert rate["low"] <= rate["value"] <= rate["high"]
    assert isclose(rate["value"], 240 / bsp["seconds"])
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    assert bsp["seconds"] == pytest.approx(rows.max(axis=1).sum())
    assert [rank["mean_s"] for rank in answer["ranks"]] == pytest.approx(rows.mean(axis=0).tolist())
    assert (answer["price_per_hour"], bsp["lost_money"]) == (None, None)


def test_the_page_and_the_markdown(call, table, tmp_path):
    bsp = ["--paradigm", "bsp", "--paradigm", "asp"]
    assert call("whatif", "steps.csv", *bsp, "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert tells(page, "raysync whatif asp")
    for data in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL):
        assert json.loads(data)["traces"]
    _, out, _ = call("whatif", "steps.csv", *bsp, "--json", "-o", "page.md")
    assert json.loads(out)["whatif"] == 2
    text = (tmp_path / "page.md").read_text()
    assert tells(text, "# asp | bsp ")


def test_curves_are_in_each_face_of_the_answer(call, table, tmp_path):
    asked = ["--model-bytes", "1MB", "--link", "1gbit", "--curve", "workers=1..4"]
    asked += ["--curve", "link=50mbit..100mbit", "--paradigm", "bsp", "--batch-size", "8"]
    code, out, _ = call("whatif", "steps.csv", *asked, "--json", "-o", "page.html")
    answer = json.loads(out)
    assert code == 0
    named = {(each["axis"], each["candidate"]) for each in answer["curves"]}
    assert named >= {("workers", "bsp"), ("link", "bsp"), ("workers", "bsp(exchange=ring)")}
    page = (tmp_path / "page.html").read_text()
    for curve in answer["curves"]:
        points = {point["at"]: point["samples_per_s"] for point in curve["points"]}
        assert list(points) == sorted(points)
        if curve["axis"] == "workers":
            assert list(points) == [1, 2, 4]
            own = next(e for e in answer["paradigms"] if e["paradigm"] == curve["candidate"])
            assert points[4] == pytest.approx(own["samples_per_s"]["value"], rel=0.2)
        assert f"curve-{curve['axis']}" in page
    assert call("whatif", "steps.csv", *asked, "-o", "page.md")[0] == 0
    assert "100 Mbit/s" in (tmp_path / "page.md").read_text()


def test_hostile_names_of_ranks_stay_text(tmp_path, call):
    (tmp_path / "x.csv").write_text("<script>alert(1)</script>,b|\x1b[2Jc\n1,2\n2,1\n")
    _, out, _ = call("whatif", "x.csv", "--paradigm", "bsp", "-o", "p.html")
    assert "\x1b" not in out
    assert "<script>alert" not in (tmp_path / "p.html").read_text()
    call("whatif", "x.csv", "--paradigm", "bsp", "-o", "p.md")
    assert "<script>" not in (tmp_path / "p.md").read_text()


def test_figures_are_valid_and_show_the_numbers(table):
    answer = predict(read([str(table)]), PredictionOptions(4))
    figures = {figure.key: figure for figure in report.answer_of(answer).figures}
    assert set(figures) == {"rate", "time", "trade-off", "ranks", "waiting"}
    for figure in figures.values():
        go.Figure(painted({"data": figure.traces, "layout": layout_of(figure)}))
        assert figure.caption.endswith(".")
    rates = {trace["name"]: trace["x"][0] for trace in figures["rate"].traces}
    for each in answer.comparison.predictions:
        assert rates[each.label] == pytest.approx(each.samples_per_s.value, rel=1e-3)
        shares = [t["x"][0] for t in figures["time"].traces if t["name"] == each.label]
        assert sum(shares) == pytest.approx(100, abs=0.1)
    assert list(figures["rate"].traces[0]["y"]) == [answer.comparison.by_rate[0].label]


def test_transfer_is_not_drawn_as_computing(table):
    """The figure has the table's share, also where most of the time is on the links."""
    exchange = Exchange(100_000_000, Link(bandwidth_bytes_per_s=1e6))
    answer = predict(read([str(table)]), PredictionOptions(exchange=exchange))
    [figure] = [each for each in report.answer_of(answer).figures if each.key == "time"]
    for each in answer.comparison.predictions:
        computing, *_ = (t["x"][0] for t in figure.traces if t["name"] == each.label)
        assert computing == pytest.approx(100 * each.computing_fraction, abs=0.1)
    assert min(each.computing_fraction for each in answer.comparison.predictions) < 0.1


def test_without_bsp_nothing_is_compared_with_it(table):
    answer = predict(read([str(table)]), PredictionOptions(), [ASP])
    assert "× bsp" not in [column.heading for column in report.paradigm_table(answer).columns]


def test_ray_is_not_imported(table):
    script = (
        "import sys; from raysync import cli\n"
        "sys.argv = 'raysync whatif steps.csv --processes 1 -o page.html'.split()\n"
        "try: cli.main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "print({'ray'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=table.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_server_on_a_workers_gpu_is_advised_no_companions():
    """The experiment would be refused with more of them."""
    link = {"server_bandwidth_bytes_per_s": 1e6}
    settings = {"engine": "virtual", "network": link, "workers": [{"count": 4, "gpus": 0.2}]}
    alone = config.validate(settings)
    on_gpu = config.validate(settings | {"cluster": {"server_gpus": 0.05}})
    assert list(server_choices(alone, [1, 2]))
    assert not list(server_choices(on_gpu, [1, 2]))


@pytest.mark.parametrize("early", [True, False])
def test_what_limits_ranks_is_found_in_all_of_their_steps(early):
    """The first steps alone say another thing than all: a rank warms up, or is throttled later."""
    slow, steady = (0.3,) * 24, (0.1,) * 76
    third = slow + steady if early else steady + slow
    steps = {"a": (0.1,) * 100, "b": (0.1,) * 100, "c": third}
    answer = predict(RankStepTimes("a test", steps), PredictionOptions(), [BSP])
    found = answer.comparison.diagnoses["bsp"]
    assert found.seconds == pytest.approx(24 * 0.3 + 76 * 0.1)
    # without its slowness its mean is that of the others: all its steps are shorter by this factor
    factor = 0.1 / (0.24 * 0.3 + 0.76 * 0.1)
    assert found.bottleneck.seconds == pytest.approx(24 * 0.3 * factor + 76 * 0.1)

"""`raysync advise`: worlds whose best is known, equals, a budget on a pretended clock, what would
change the answer, honest data, the command and its files.
"""

import ast
import json
import re
import sys
from dataclasses import replace

import pytest
import yaml

from raysync import cli, config
from raysync.config import Link, ParadigmChoice, Target
from raysync.core.metrics import ACCURACY
from raysync.errors import ConfigError, RunFailed
from raysync.predict import advice_report as report, finalists as training, runner, search
from raysync.predict.advise import SearchOptions, advise
from raysync.predict.candidates import Candidate, Space
from raysync.predict.exchange import Exchange
from raysync.predict.finalists import Goal, tune
from raysync.predict.remedies import growth
from raysync.predict.runs import Outcome, PlannedRun, perform
from raysync.predict.search import Timed, finalists
from raysync.predict.setting import Setting
from raysync.predict.snippets import snippets
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.predict.world import world_of
from raysync.results.ranking import Ranked, Standings
from raysync.results.statistics import estimate
from tests.builders.messages import naming, tells

pytest.importorskip("optuna")

BSP, ASP = ParadigmChoice(name="bsp"), ParadigmChoice(name="asp")
SSP0 = ParadigmChoice.model_validate({"name": "ssp", "staleness": 0})
TIMED = {
    "engine": "virtual",
    "timing": "only",
    "batch_size": 30,
    "workload": {"iterations_per_worker": 150},
    "workers": [{"name": "fast", "step_s": 1}, {"name": "slow", "step_s": 2}],
}


class Clock:
    """A clock that goes on by so many seconds whenever it is read."""

    def __init__(self, tick=0.0):
        self.at, self.tick = 0.0, tick

    def __call__(self):
        self.at += self.tick
        return self.at


def world(**settings):
    return world_of(config.validate(TIMED | settings))


def asked(*choices, seconds=1.0, seeds=2):
    return SearchOptions(seconds, seeds, 1, choices)


def candidate(name="bsp", **parameters):
    return Candidate(ParadigmChoice.model_validate({"name": name, **parameters}))


def outcome(status="finished", **values):
    return Outcome(status, values, {})


# ---- answers that are known ----


def test_without_a_barrier_rates_add_up():
    """300 steps: rounds of 2 s, or 1.5 steps a second."""
    answer = advise(world(), asked(BSP, ASP), Clock())
    first, second = answer.time.ranked
    assert (first.paradigm, second.paradigm) == ("asp", "bsp")
    assert (first.value.mean, second.value.mean) == (200, 300)
    assert report.alike(answer.time) == ["asp"]
    assert answer.mean("bsp", "wait_fraction") == pytest.approx(150 / 600)
    assert answer.mean("asp", "staleness_mean") > 0
    assert answer.final is None
    assert not answer.trained


@pytest.mark.parametrize(("factor", "is_alone"), [(2, False), (20, True)])
def test_what_one_worker_does_nearly_alone_is_said(factor, is_alone):
    """Of 300 pushes under ASP the other one makes 300 / (1 + factor)."""
    workers = [{"name": "fast", "step_s": 1}, {"name": "slow", "step_s": factor}]
    answer = advise(world(workers=workers), asked(BSP, ASP, seeds=1), Clock())
    assert answer.best.label == "asp"
    count = answer.applied("asp")
    assert count["fast-0"] == pytest.approx(300 * factor / (factor + 1), abs=1)
    said = " ".join(report.sentences(answer))
    assert tells(said, f"asp fast-0 {count['fast-0']} 300") == is_alone


def test_the_search_finds_shares_for_unequal_workers(monkeypatch):
    """Of synchronous candidates the best gives the fast one twice the samples: 60 = 40 + 20, and a
    round takes 4/3 s in place of 2, but for the first one.
    """
    monkeypatch.setattr(search, "CANDIDATES", 24)
    short = {"workload": {"iterations_per_worker": 30}}
    answer = advise(world(**short), asked(seeds=1), Clock())
    fresh = [each for each in answer.timed if each.candidate.is_synchronous]
    best = min(fresh, key=lambda each: each.seconds)
    assert best.candidate.label == "balanced"
    assert best.seconds == pytest.approx(2 + 29 * 4 / 3)
    assert answer.shares("balanced") == {"fast-0": 40, "slow-0": 20}
    assert {"bsp", "balanced"} <= set(answer.contenders)
    assert answer.time.first.value.mean <= 1.005 * min(each.seconds for each in answer.timed)
    drawn = {each.candidate.label for each in answer.timed}
    assert len(drawn) == len(answer.timed) == 24


def test_equal_paradigms_cannot_be_told_apart():
    """SSP without staleness releases when BSP does; ASP is faster than both."""
    jitter = {"distribution": "lognormal", "sigma": 0.3}
    workers = [{"name": "gpu", "count": 3, "step_s": 1, "jitter": jitter}]
    settings = {"workers": workers, "workload": {"iterations_per_worker": 60}}
    answer = advise(world(**settings), asked(BSP, SSP0, seeds=3), Clock())
    labels = [each.paradigm for each in answer.time.ranked]
    assert report.alike(answer.time) == labels
    assert tells(report.sentences(answer)[0], " ".join(labels))
    answer = advise(world(**settings), asked(BSP, ASP, seeds=3), Clock())
    assert report.alike(answer.time) == ["asp"]
    assert "bsp" not in report.sentences(answer)[0]


def test_seeds_are_common_and_one_says_nothing_of_how_sure():
    answer = advise(world(seed=7), asked(BSP, ASP, seeds=3), Clock())
    assert answer.seeds == [7, 8, 9]
    assert all(sorted(runs) == [7, 8, 9] for runs in answer.outcomes.values())
    assert advise(world(seeds=[3, 1]), asked(BSP, seeds=3), Clock()).seeds == [1, 3, 4]
    alone = advise(world(), asked(BSP, ASP, seeds=1), Clock())
    assert alone.time.leader.sure == "one seed"


def test_servers_are_searched_only_where_they_take_time():
    assert Space(world().plan.experiment)._servers == [None]
    network = {"server_bandwidth_bytes_per_s": 1e6}
    space = Space(world(network=network).plan.experiment)
    assert space._servers == [None, (2, "apart"), (1, "with-workers"), (2, "with-workers")]
    answer = advise(world(network=network), asked(BSP, seeds=1), Clock())
    assert answer.best.servers is not None
    cluster = answer.world.advised(answer.best).cluster
    assert (cluster.server_shards, cluster.server_placement) == answer.best.servers


def test_an_exchange_is_searched_and_all_else_has_its_links():
    """A ring of two moves the vector once each way. The server's link takes it twice each way, but
    one of the pushes comes while the slow worker still computes.
    """
    link = Link(bandwidth_bytes_per_s=1e5)
    size = world().plan.vector_bytes
    both = world_of(config.validate(TIMED), exchange=Exchange(size, link, servers=(1, 2)))
    answer = advise(both, asked(seconds=5.0, seeds=1), Clock(tick=0.001))
    timed = {each.candidate.label: each.seconds for each in answer.timed}
    assert timed["bsp(exchange=ring)"] == pytest.approx(150 * (2 + size / 1e5), rel=0.01)
    assert timed["bsp"] == pytest.approx(150 * (2 + 3 * size / 1e5), rel=0.01)
    assert "2 servers apart" in " ".join(timed)
    assert answer.world.advised(candidate(exchange="ring")).paradigm.parameters


# ---- finalists ----


def timed(name, seconds, staleness):
    values = {"seconds": float(seconds), "staleness_mean": float(staleness)}
    return Timed(candidate(name), {0: outcome(**values)})


def test_finalists_are_on_the_front_and_bsp_is_among_them():
    every = [
        timed("bsp", 10, 0),
        timed("balanced", 6, 0),
        timed("lagtuner", 7, 1),
        timed("ssp", 5, 2),
        timed("hybrid", 4.99, 3),
        timed("asp", 3, 4),
    ]
    assert [each.candidate.label for each in finalists(every, 5)] == [
        "bsp",
        "balanced",
        "ssp",
        "asp",
    ]
    assert [each.candidate.label for each in finalists(every, 3)] == ["bsp", "balanced", "asp"]


# ---- the budget ----


def test_the_budget_is_kept():
    """The clock goes on with each event or so of a run."""
    counts = []
    for seconds in (1000, 3000):
        clock = Clock(10.0)
        short = {"workload": {"iterations_per_worker": 10}}
        answer = advise(world(**short), asked(seconds=seconds, seeds=1), clock)
        assert seconds / 2 < answer.used_s <= seconds + 200
        assert clock.at <= seconds + 250
        counts.append(len(answer.timed))
        assert all(len(each.outcomes) == 1 for each in answer.timed)
    assert 0 < counts[0] < counts[1]


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(ConfigError, match=naming("candidate")):
        advise(world(), asked(seconds=1), Clock(0.05))


# ---- learning rates ----


class Trainings:
    """Takes the place of a runner: the time and the accuracy of each rate are given."""

    def __init__(self, values, rounds=5):
        self.values, self.left = values, rounds

    def all(self, tasks, until, what):
        self.left -= 1
        if self.left < 0:
            return [None] * len(tasks)
        return [self.values(task.candidate.choice.name, task.candidate.lr or 0.1) for task in tasks]


GOAL = Goal(Target(metric="accuracy", at_least=0.9), ACCURACY)


def test_each_finalist_has_the_rates_that_suit_it():
    """BSP is fastest and best at 0.2; ASP soonest at 0.05, with the best model at 0.025."""

    def values(name, lr):
        best, accurate = (0.2, 0.2) if name == "bsp" else (0.05, 0.025)
        return outcome(time_to_target_s=abs(lr - best), final_accuracy=-abs(lr - accurate))

    both = [candidate("bsp"), candidate("asp")]
    tuning = tune(both, 0.1, GOAL, Trainings(values), 9, 0.5)
    assert sorted(tuning.rates) == pytest.approx([0.025, 0.05, 0.1, 0.2, 0.4])
    rates = [(each.choice.name, each.lr) for each in tuning.contenders]
    assert rates == [("bsp", 0.2), ("asp", 0.05), ("asp", 0.025)]


def test_a_rate_that_not_all_had_counts_for_none_and_without_any_it_is_the_files():
    def values(name, lr):
        return outcome(time_to_target_s=lr, final_accuracy=0.5)

    tuning = tune([candidate()], 0.1, GOAL, Trainings(values, rounds=1), 9, 0.5)
    assert (tuning.rates, tuning.contenders) == ((0.1,), (candidate(),))
    tuning = tune([candidate()], 0.1, GOAL, Trainings(values, rounds=0), 9, 0.5)
    assert (tuning.rates, tuning.contenders) == ((), (candidate(),))


def test_what_diverges_is_not_chosen():
    def values(name, lr):
        status = "diverged" if lr > 0.1 else "finished"
        return outcome(status, time_to_target_s=1 / lr, final_accuracy=lr)

    tuning = tune([candidate()], 0.1, GOAL, Trainings(values), 9, 0.5)
    assert tuning.contenders == (candidate(),)


# ---- with gradients ----

LEARNING = {
    "name": "learning",
    "engine": "virtual",
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "train_samples": 300, "test_samples": 50},
    "batch_size": 16,
    "workload": {"epochs": 1},
    "evaluation": {"marks": 4},
    "update": {"lr": 0.1},
    "workers": [{"name": "fast", "step_s": 1}, {"name": "slow", "step_s": 2}],
    "target": {"metric": "accuracy", "at_least": 0.2},
}


@pytest.fixture(scope="module")
def learned():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "FACTORS", (1.0, 2.0))
        return advise(
            world_of(config.validate(LEARNING)),
            asked(BSP, ParadigmChoice(name="balanced")),
            Clock(),
        )


def test_what_is_advised_is_chosen_on_held_out_training_samples(learned):
    plan = learned.world.plan
    assert (len(plan.model.train_set), len(plan.model.validation_set)) == (270, 30)
    assert plan.workload_samples == 300
    assert len(plan.model.test_set) == 50
    assert tells(" ".join(learned.remarks), "30 training")
    advised = learned.world.advised(learned.best)
    assert advised.data.validation_samples is None
    assert advised.workload.epochs == 1


def test_a_training_measures_validation_and_test_apart(learned):
    plan = learned.world.plan
    run = perform(plan, PlannedRun(candidate(), 0, trains=True), Clock())
    assert run.values["final_accuracy"] * 30 == pytest.approx(
        round(run.values["final_accuracy"] * 30)
    )
    assert run.values["test_"] * 50 == pytest.approx(round(run.values["test_"] * 50))
    again = perform(plan, PlannedRun(candidate(), 0, trains=True), Clock())
    assert again == run
    assert perform(plan, PlannedRun(candidate(), 1, trains=True), Clock()) != run


def test_the_answer_names_both_goals_and_its_files_run(learned, tmp_path):
    assert learned.trained
    assert learned.final is not None
    names = {path.name for path in report.write(learned, tmp_path)}
    assert {"advised.yaml", "advice.html", "advice.md", "advice.json"} <= names
    assert {"advised_ddp.py", "advised_accelerate.py", "advised_lightning.py"} <= names
    experiment = config.load(tmp_path / "advised.yaml")
    best = learned.best
    assert experiment.paradigm.label == best.choice.label
    assert experiment.update.lr == (best.lr or 0.1)
    assert experiment.target == Target(metric="accuracy", at_least=0.2)
    plain = json.loads((tmp_path / "advice.json").read_text())
    assert plain["answer"][0] == report.sentences(learned)[0]
    for words in ("accuracy at least 0.2", "on the validation set", "on the test set"):
        assert any(words in sentence for sentence in plain["answer"])
    page = (tmp_path / "advice.html").read_text()
    assert all(sentence in page for sentence in report.sentences(learned))
    assert re.search(r"src=|href=.http", page.split("<script>")[0]) is None


# ---- what would change the answer ----


def test_without_the_slowest_worker():
    """300 steps by BSP: 100 rounds of 4 s, or 150 of 1 s."""
    workers = [{"name": "fast", "count": 2, "step_s": 1}, {"name": "slow", "step_s": 4}]
    settings = {"workers": workers, "workload": {"iterations_per_worker": 100}}
    answer = advise(world(**settings), asked(BSP), Clock())
    [changed, *_] = answer.changed
    assert tells(changed.change, "slow-0")
    assert answer.time.first.value.mean == 400
    assert changed.todays_best_s == 150
    [_, table] = report.answer_of(answer).tables
    assert table.frame().loc[changed.change].tolist() == ["bsp", "150", "2.67"]


def test_another_answer_needs_to_be_clearly_better():
    """On a changed cluster today's best stays where it cannot be told apart from the first."""
    answer = advise(world(), asked(BSP, ASP, seeds=3), Clock())

    def changed(*asp_s):
        ranked = [
            Ranked(label, estimate(values), dict(enumerate(values)))
            for label, values in (("bsp", [100.0, 101.0, 99.0]), ("asp", list(asp_s)))
        ]
        standings = Standings(answer.time.measure, tuple(ranked))
        return replace(answer.changed[0], standings=standings)

    for values, best in (((150, 90, 100), "asp"), ((200, 201, 202), "bsp")):
        [_, table] = report.answer_of(replace(answer, changed=(changed(*values),))).tables
        assert table.frame()["best"].tolist() == [best]


def test_one_more_worker_of_each_group():
    """300 steps by BSP: 100 rounds of 4 s; with one more of either group 75."""
    workers = [{"name": "fast", "count": 2, "step_s": 1}, {"name": "slow", "step_s": 4}]
    settings = {"workers": workers, "workload": {"iterations_per_worker": 100}}
    answer = advise(world(**settings), asked(BSP), Clock())
    more = [each.todays_best_s for each in answer.changed if "one more" in each.change]
    assert more == [300, 300]


@pytest.mark.parametrize("group", ["gpu", "cpu", "far"])
def test_one_more_worker_is_what_a_larger_count_is(group):
    """With links, faults, and step times of each worker's own: then those of the middle one."""
    workers = [
        {"name": "gpu", "count": 3, "trace": [[3.0], [1.0], [2.0]]},
        {"name": "cpu", "count": 2, "step_s": 4, "jitter": {"sigma": 0.2}},
        {"name": "far", "step_s": 2, "link": {"latency_s": 0.5}, "batch_size": 20},
    ]
    faults = [{"kind": "slow-down", "workers": ["far"], "factor": 2}]
    settings = {"faults": faults, "workload": {"samples": 3000}}
    plan = world(workers=workers, **settings).plan
    [change] = [name for name, _ in growth(Setting(plan, BSP)) if name.endswith(f"group {group}")]
    grown = [each | {"count": each.get("count", 1) + (each["name"] == group)} for each in workers]
    grown[0]["trace"] = [*workers[0]["trace"], [2.0]][: grown[0]["count"]]
    larger = world(workers=grown, **settings).plan
    for choice in (candidate("asp"), candidate("k-sync", k=4)):
        changed = perform(plan, PlannedRun(choice, 0, change=change), Clock())
        assert changed == perform(larger, PlannedRun(choice, 0), Clock())


FAILED = "worker fast-0#1: ValueError: no"


def test_the_answer_says_why_a_candidate_failed(monkeypatch):
    """Once, whatever the runs of it."""

    def breaking(plan, task, now):
        if task.candidate.choice == ASP:
            return outcome("failed", seconds=None) if task.seed else failed
        return perform(plan, task, now)

    failed = Outcome("failed", {}, {}, FAILED)
    monkeypatch.setattr(runner, "perform", breaking)
    answer = advise(world(), asked(BSP, ASP), Clock())
    assert [each for each in report.basis(answer) if "asp" in each and FAILED in each]
    assert set(answer.contenders) == {"bsp"}
    monkeypatch.setattr(runner, "perform", lambda plan, task, now: failed)
    with pytest.raises(RunFailed, match=FAILED):
        advise(world(), asked(BSP, ASP), Clock())


def test_the_reason_of_a_failed_training_is_one_line():
    """The model breaks at its third gradient, so each run in time only finishes."""
    settings = {
        "timing": "with-gradients",
        "model": "tests.builders.models:breaks_at_a_gradient",
        "target": {"metric": "accuracy", "at_least": 0.5},
        "workload": {"samples": 1200},
    }
    with pytest.raises(RunFailed, match="this layer breaks") as caught:
        advise(world(**settings), asked(BSP, ASP, seconds=1000.0, seeds=1), Clock())
    _, reason = str(caught.value).splitlines()
    assert "bsp" in reason
    assert "asp" in reason


def test_bandwidth_and_servers():
    network = {"link": {"bandwidth_bytes_per_s": 1e4}, "server_bandwidth_bytes_per_s": 1e4}
    workers = [{"name": "gpu", "count": 2, "step_s": 0.001}]
    plan = world(network=network, workers=workers).plan
    changes = dict(growth(Setting(plan, BSP)))
    assert len(changes) == 3, "a server, bandwidth, a worker"
    runs = [
        perform(plan, PlannedRun(candidate(), 0, change=change), Clock()).value("seconds")
        for change in ("", *changes)
    ]
    assert runs[0] / runs[2] == pytest.approx(2, rel=0.01)
    assert runs[0] / runs[1] > 1.3


def test_an_even_cluster_has_no_slowest_worker():
    plan = world(workers=[{"name": "gpu", "count": 2, "step_s": 1}]).plan
    assert not [name for name, _ in growth(Setting(plan, BSP)) if "slowest" in name]


# ---- step times ----


def test_measured_step_times_take_the_place_of_those_of_the_file():
    steps = RankStepTimes("a test", {"rank0": (2.0, 2.0), "rank1": (8.0, 8.0)})
    traced = world_of(config.validate(TIMED), steps=steps)
    assert traced.experiment.workers[0].step_s == 1
    run = perform(traced.plan, PlannedRun(candidate(), 0), Clock())
    assert run.value("seconds") == 150 * 8
    described = [{"name": "gpu", "count": 2, "per_sample_s": 0.01, "fixed_s": 0.1}]
    scaled = world_of(
        config.validate(TIMED | {"workers": described}),
        steps=RankStepTimes("a test", {"gpu-0": (0.8, 0.8), "gpu-1": (0.8, 0.8)}),
    )
    run = perform(scaled.plan, PlannedRun(candidate(), 0), Clock())
    assert run.value("seconds") == pytest.approx(150 * 0.8)


# ---- snippets ----


def test_snippets_compile_and_scale_to_the_mean_over_all_samples():
    experiment = config.validate(LEARNING)
    texts = snippets(experiment, candidate("balanced"), {"fast-0": 21, "slow-0": 11})
    for text in texts.values():
        ast.parse(text)
        assert "BATCH_SIZES = (21, 11)" in text
        assert "LEARNING_RATE = 0.2" in text
    scope = {}
    exec(compile(texts["advised_ddp.py"], "ddp", "exec"), scope)
    scaled, batches = scope["scaled"], scope["UnequalBatches"]
    assert (scaled(1.0, 0) + scaled(3.0, 1)) / 2 == pytest.approx((21 * 1.0 + 11 * 3.0) / 32)
    first, second = (list(batches(100, rank)) for rank in (0, 1))
    assert [len(each) for each in first] == [21] * 3
    drawn = [index for batch in (*first, *second) for index in batch]
    assert len(set(drawn)) == len(drawn) == 96
    other = batches(100, 0)
    other.set_epoch(1)
    assert list(other) != first


@pytest.mark.parametrize(
    ("choice", "synchronous"),
    [
        ({"name": "bsp"}, True),
        ({"name": "balanced"}, True),
        ({"name": "balanced", "paradigm": {"name": "bsp"}}, True),
        ({"name": "balanced", "paradigm": "asp"}, False),
        ({"name": "asp"}, False),
    ],
)
def test_only_bsp_is_what_plain_data_parallel_training_does(choice, synchronous):
    assert candidate(**choice).is_synchronous == synchronous


# ---- the command ----


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, **settings):
        (tmp_path / "file.yaml").write_text(yaml.safe_dump(TIMED | settings))
        monkeypatch.setattr(sys, "argv", ["raysync", "advise", "file.yaml", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        return code, *capsys.readouterr()

    return call


def test_the_command_answers_and_writes(call, tmp_path):
    options = ["--processes", "1", "--paradigm", "bsp", "--paradigm", "asp", "--seeds", "2"]
    code, out, _ = call(*options)
    assert code == 0
    assert tells(out, "asp")
    assert tells(out, "200 s")
    assert tells(out, "advice/advised.yaml")
    assert config.load(tmp_path / "advice" / "advised.yaml").paradigm.name == "asp"
    assert not list((tmp_path / "advice").glob("*.py"))
    code, out, _ = call(*options[:4], "--json", "-o", "elsewhere")
    assert json.loads(out)["time"]["ranked"][0]["label"] == "bsp"
    assert (tmp_path / "elsewhere" / "advised_ddp.py").exists()


TRAINED = {"timing": "with-gradients", "target": None}
WRONG = {
    "no time": (["--budget-minutes", "0"], {}, "--budget-minutes 0: it must be above 0"),
    "nan": (["--budget-minutes", "nan"], {}, "--budget-minutes nan: it must be above 0"),
    "no seed": (["--seeds", "0"], {}, "--seeds 0: one at least"),
    "no target": ([], TRAINED, "target: it is not set"),
    "a typo": (["--paradigm", "bps"], {}, "bsp"),
    "a file": (["-o", "file.yaml"], {}, "it is a file; name a folder"),
    "no steps": (["--steps", "none.csv"], {}, "none.csv: there is no such file"),
    "memory": ([], {"workers": [{"max_batch": 0}]}, "max_batch"),
    "little memory": ([], {"workers": [{"max_batch": 8}]}, "can hold"),
    "a small batch": (
        [],
        {"batch_size": 1, "workers": [{"devices_per_worker": 2}]},
        "1 samples cannot be shared by the 2 devices",
    ),
    "worse": (
        [],
        {"timing": "with-gradients", "target": {"metric": "acuracy", "at_least": 0.5}},
        "accuracy",
    ),
}


@pytest.mark.parametrize(("options", "settings", "message"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_explained(call, options, settings, message):
    code, _, err = call(*options, **settings)
    assert (code, "Traceback" in err) == (2, False)
    assert message in err


def test_steps_of_other_workers_are_refused(call, tmp_path):
    (tmp_path / "steps.csv").write_text("a,b,c\n1,2,3\n")
    code, _, err = call("--steps", "steps.csv")
    assert code == 2
    assert tells(err, "3 experiment 2")


def test_without_optuna_the_extra_is_named(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call()
    assert code == 2
    assert tells(err, "'raysync[advise]'")

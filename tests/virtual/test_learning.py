"""A virtual run learns what its journal says: every gradient on the weights of its base, every
update as torch makes it.
"""

import os
import subprocess
import sys
from math import isfinite
from pathlib import Path

import pytest
import torch
from torch import nn

import raysync
from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Drop, Release
from raysync.core.events import Pushed
from raysync.core.journal import Evaluation
from raysync.engine.messages import PublishCall, StepCall, StepReport
from raysync.engine.topology import SERVER
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.virtual.engine import driver_of
from tests.builders.updates import TOO_FAST
from tests.builders.virtual import (
    DATA,
    busy,
    choice_of,
    decided,
    entries,
    learn,
    push_times,
    replayed,
    run,
    slot_of,
    weights_of,
)
from tests.virtual.oracle import Oracle

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = {
    "engine": "virtual",
    "batch_size": 8,
    "update": {"lr": 0.1},
    "workers": [
        {"name": "a", "step_s": 1},
        {"name": "b", "step_s": 2.5},
        {"name": "c", "step_s": 4},
    ],
    "workload": {"samples": 160},
    "evaluation": {"marks": 2},
}
CRASH = {"kind": "crash", "worker": "b-0", "at_s": 7, "rejoin_after_s": 3}
"""Under BSP half a second after b's second push, which waits for c's."""


PARADIGMS = ["bsp", "asp", "ssp", "lagtuner", "tests.builders.paradigms:Sticky"]


def net(dropout=0.0, norm=True):
    return nn.Sequential(
        nn.Linear(3, 8),
        nn.BatchNorm1d(8) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(8, 4),
    )


def plain():
    return net(norm=False)


def task_of(model=net, data=DATA, **settings):
    return prepare(config.validate(SETTINGS | settings), model, data)


def kept_gradients(driver):
    """The calls of steps that anything still refers to."""
    return [call for call in driver.backend.state()["calls"].values() if "step" in call]


def learned(training, paradigm):
    """The lines and the driver of a run that replays, and plain torch's oracle of its weights."""
    lines, driver = learn(training, paradigm)
    assert lines[-1].status == "finished", lines[-1]
    oracle = Oracle(training).follow(lines)
    assert (weights_of(driver) - oracle.vector()).abs().max().item() < 1e-5
    assert replayed(training, lines, choice_of(paradigm, {})).difference is None
    return lines, driver, oracle


def losses_of(lines):
    """(worker, clock) -> the loss of that step."""
    return {(e.event.worker, e.event.clock): e.report.loss for e in entries(lines, Pushed)}


@pytest.mark.parametrize("paradigm", PARADIGMS)
@pytest.mark.parametrize("devices", [(1, 1, 1), (2, 2, 2), (1, 2, 3)])
def test_a_run_is_what_plain_torch_makes_of_its_journal(paradigm, devices):
    """Gradients of version `base` exactly, updates, and batch-norm statistics that stay with their
    worker.
    """
    training = task_of(
        faults=[CRASH],
        workers=[
            group | {"devices_per_worker": count}
            for group, count in zip(SETTINGS["workers"], devices, strict=True)
        ],
    )
    lines, driver, oracle = learned(training, paradigm)
    assert torch.equal(weights_of(driver)[-2:], oracle.vector()[-2:]), "the count of batches"
    versions = {push: apply.version for _, apply in decided(lines, Apply) for push in apply.pushes}
    pushes = [entry.event for entry in entries(lines, Pushed)]
    stale = [push for push in pushes if versions[push.worker, push.clock] > push.base + 1]
    assert bool(stale) == (paradigm != "bsp"), "weights of an older version were used"
    if paradigm.endswith("Sticky"):
        releases = [each for _, each in decided(lines, Release) if each.worker == "a-0#1"]
        assert all(each.pull == (each.clock % 3 == 0) for each in releases)


@pytest.mark.parametrize(
    "paradigm", ["asp", "tests.builders.paradigms:Sticky", "k-batch-async", "sync-switch"]
)
def test_stale_gradients_and_phases_are_treated_as_the_update_says(paradigm):
    """From the journal again: weights of the worker's last pull, its staleness, the phase's
    learning rate.
    """
    switches = paradigm == "sync-switch"
    phases = (
        {"phases": {"bsp": {"lr": 0.2}, "asp": {"lr": 0.05}}, "staleness_scaling": "none"}
        if switches
        else {}
    )
    update = {
        "lr": 0.1,
        "staleness_scaling": "inverse",
        "delay_compensation": {"strength": 20},
    } | phases
    training = task_of(
        plain, faults=[CRASH], update=update, **({"paradigm": paradigm} if switches else {})
    )
    _, driver, _ = learned(training, paradigm)
    assert not kept_gradients(driver), "what was applied or dropped is not kept"


FAMILY = [
    ("hybrid", {"k": 2, "staleness_tolerance": 1, "pull_interval": 3}),
    ("hybrid", {"k": 1, "staleness_tolerance": "inf", "pull_interval": 3, "snapshot": "global"}),
    ("tests.builders.paradigms:Twice", {}),
    ("k-sync", {"k": 2}),
    ("k-batch-sync", {"k": 4}),
    ("ringmaster", {"staleness": 1}),
]


@pytest.mark.parametrize(("name", "parameters"), FAMILY)
def test_gradients_are_of_the_weights_that_were_published(name, parameters):
    """The losses are those of plain torch at `base`, though the model may have moved on; evaluated
    is the newest.
    """
    choice = ParadigmChoice(name=name, **parameters)
    training = task_of(faults=[] if name.endswith("Twice") else [CRASH], evaluation={"marks": 20})
    lines, _, _ = learned(training, choice)
    kept = [apply.version for _, apply in decided(lines, Apply) if not apply.publish]
    assert bool(kept) == ("snapshot" in parameters or name.endswith("Twice"))
    bases = {entry.event.base for entry in entries(lines, Pushed)}
    assert not bases & set(kept)
    evaluated = {line.version for line in lines if isinstance(line, Evaluation)}
    assert not kept or evaluated & set(kept), "evaluated, though nobody pulls them"


@pytest.mark.parametrize(("name", "parameters"), FAMILY[:2])
def test_every_evaluation_is_of_the_newest_model(name, parameters):
    """Of the version that it says, whether that is published or not."""
    training = task_of(plain, evaluation={"marks": 20})
    lines, _ = learn(training, ParadigmChoice(name=name, **parameters))
    versions = Oracle(training).follow(lines).versions
    x, y = training.data.samples(training.data.test_x), torch.from_numpy(training.data.test_y)
    evaluations = [line for line in lines if isinstance(line, Evaluation)]
    assert len({line.version for line in evaluations}) > 9
    for line in evaluations:
        weight, bias, last_weight, last_bias = versions[line.version]
        logits = nn.functional.linear(
            nn.functional.linear(x, weight, bias).relu(), last_weight, last_bias
        )
        assert line.loss == pytest.approx(nn.functional.cross_entropy(logits, y).item(), abs=1e-5)


def test_the_last_weights_are_evaluated_as_they_are():
    """An independent evaluation of the oracle's model: accuracy, and the loss with the mean of the
    workers' statistics.
    """
    training = task_of()
    lines, _ = learn(training, "asp")
    oracle = Oracle(training).follow(lines)
    module, rest = training.build().eval(), oracle.vector()
    with torch.no_grad():
        for value in [*module.parameters(), *module.buffers()]:
            value.copy_(rest[: value.numel()].view_as(value))
            rest = rest[value.numel() :]
        logits = module(training.data.samples(training.data.test_x))
    evaluations = [line for line in lines if isinstance(line, Evaluation)]
    assert [one.mark for one in evaluations] == [0, 0.5, 1]
    assert [one.progress for one in evaluations] == [0, 0.5, 1]
    y = torch.from_numpy(training.data.test_y)
    assert evaluations[-1].loss == pytest.approx(
        nn.functional.cross_entropy(logits, y).item(), abs=1e-5
    )
    assert evaluations[-1].metrics["accuracy"] == (logits.argmax(dim=1) == y).float().mean().item()
    assert evaluations[-1].version == 20


def test_each_group_computes_in_its_own_precision():
    def first_losses(**more):
        lines, _ = learn(
            task_of(plain, workers=[{"name": "a", "step_s": 1}, {"name": "b", "step_s": 1} | more]),
            "bsp",
        )
        return [entry.report.loss for entry in entries(lines, Pushed)[:2]]

    (a, b), (same, rounded) = first_losses(), first_losses(precision="bf16")
    assert a == same
    assert 0 < abs(b - rounded) < 0.05


def test_an_evaluation_has_the_time_of_its_publication():
    training = task_of(
        workers=[{"step_s": 1}],
        network={"link": {"latency_s": 0.5}, "update_s": 2},
        evaluation={"marks": 20},
    )
    lines, _ = learn(training, "asp")
    assert [line.at for line in lines if isinstance(line, Evaluation)] == [0.0] + [
        4.0 * (n + 1) for n in range(20)
    ]
    assert lines[-1].at == 80.0


def test_dropout_is_a_function_of_slot_and_clock():
    """At a rate of next to 0 the weights stand still: then a step's loss must not depend on who
    computed before.
    """

    def losses(model, paradigm, **settings):
        return losses_of(learn(task_of(model, update={"lr": 1e-30}, **settings), paradigm)[0])

    def dropping():
        return net(dropout=0.5, norm=False)

    for devices in (1, 3):
        groups = {
            "workers": [group | {"devices_per_worker": devices} for group in SETTINGS["workers"]]
        }
        bsp, asp = losses(dropping, "bsp", **groups), losses(dropping, "asp", **groups)
        both = bsp.keys() & asp.keys()
        assert len(both) > 12
        assert {key: bsp[key] for key in both} == {key: asp[key] for key in both}
        still = losses(plain, "bsp", **groups)
        assert all(abs(still[key] - bsp[key]) > 1e-4 for key in bsp), "it does drop out"


def test_a_run_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    learn(task_of(lambda: net(dropout=0.5)))
    assert torch.equal(torch.rand(2), expected)


def test_gradients_in_turn_are_those_of_their_weights_and_stay_as_they_are():
    training = task_of(lambda: net(dropout=0.5))
    order = [("a-0", 0, 0), ("b-0", 0, 0), ("a-0", 1, 1), ("c-0", 0, 1), ("b-0", 1, 0)]

    def processes():
        return driver_of(training, make("asp")).backend.processes

    def computed(shared, slot, clock, which):
        actor = shared.start(f"{slot}#1").actor
        return actor.compute(StepCall(clock, 8), [weights[which]], StepReport(None, 0.0))

    [whole], _ = processes().start(SERVER).actor.compute(PublishCall(0, 0), [], None)
    weights, shared = [factor * whole for factor in (1.0, 0.5)], processes()
    in_turn = [computed(shared, *step) for step in order]
    for ([ours], said), step in zip(in_turn, order, strict=True):
        [fresh], alone = computed(processes(), *step)
        assert torch.equal(ours, fresh)
        assert said == alone


DETERMINED = {
    "engine": "virtual",
    "seed": 3,
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 400, "test_samples": 100},
    "paradigm": "asp",
    "workload": {"epochs": 1},
    "evaluation": {"marks": 2},
    "workers": [
        {"name": "a", "count": 3, "step_s": 1, "jitter": {"sigma": 0.3}},
        {"name": "b", "step_s": 2},
    ],
    "network": {"link": {"latency_s": 0.01}, "server_bandwidth_bytes_per_s": 1e6},
    "faults": [
        {"kind": "slow-down", "factor": 3, "mean_gap_s": 5, "lasts_s": 2, "count": 2},
        {"kind": "crash", "worker": "a-1", "at_clock": 3, "rejoin_after_s": 4},
    ],
}


def journal(record):
    return (record.path / "journal.jsonl").read_text()


def test_the_same_experiment_is_the_same_run_bit_for_bit(tmp_path):
    """In this process and in another one, whose sets are ordered by another hash."""
    text = (
        "import raysync, torch; torch.set_num_threads(1)  # as here: with another number, sums are"
        f" rounded otherwise\nprint(raysync.run({DETERMINED | {'output': str(tmp_path)}!r}).path)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    here = raysync.run(DETERMINED | {"output": str(tmp_path)})
    there = raysync.load(done.stdout.strip())
    assert journal(here) == journal(there)
    assert here.summary["status"] == "finished"
    assert '"Left"' in journal(there)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_final_weights_are_the_same_bit_for_bit(paradigm):
    def final(**settings):
        training = task_of(lambda: net(dropout=0.3), faults=[CRASH], **settings)
        lines, driver = learn(training, paradigm)
        return lines, weights_of(driver)

    (lines, weights), (again, same), (_, other) = final(), final(), final(seed=1)
    assert lines == again
    assert torch.equal(weights, same)
    assert not torch.equal(weights, other)


STAGES = {"name": "decoupled", "modules": 1, "groups": 5}
MEAN, SUM = {"momentum": 0.9}, {"combine": "sum", "lr_scaling": "none"}


@pytest.mark.parametrize(
    ("parameters", "update"),
    [
        ({"name": "bsp"}, MEAN),
        ({"name": "bsp"}, SUM),
        ({"name": "bsp"}, {"delay_compensation": {}}),
        (STAGES, MEAN),
        (STAGES, SUM),
        (STAGES | {"mix": "grad", "mix_every": 2}, MEAN),
    ],
    ids=["mean", "sum", "compensated", "decoupled mean", "decoupled sum", "gossip"],
)
def test_under_bsp_the_model_does_not_depend_on_who_is_fast(parameters, update):
    """Gradients of a round are combined slot by slot, and buffers worker by worker, in whatever
    order they arrive: bit by bit the same, although sums of floats depend on their order.
    """
    models, orders = [], set()
    for pace in ([1, 1.3, 1.6, 1.9, 2.2], [2.2, 1.9, 1, 1.3, 1.6]):
        workers = [{"name": n, "step_s": s} for n, s in zip("abcde", pace, strict=True)]
        task = task_of(workers=workers, update={"lr": 0.1} | update, workload={"samples": 400})
        lines, driver = learn(task, ParadigmChoice(**parameters))
        orders |= {apply.pushes for _, apply in decided(lines, Apply)}
        models.append(weights_of(driver, driver.topology.servers[0].actor))
    assert len(orders) == 20, "each round in another order"
    assert torch.equal(*models)


def test_jitter_is_a_function_of_slot_and_clock_under_every_paradigm():
    """Common random numbers: two paradigms meet the same step times, with gradients or without."""
    seen = {}
    for timing in ("only", "with-gradients"):
        for paradigm in PARADIGMS:
            training = task_of(
                timing=timing, workers=[{"count": 3, "step_s": 1, "jitter": {"sigma": 0.5}}]
            )
            lines = run(training, paradigm) if timing == "only" else learn(training, paradigm)[0]
            for step, seconds in busy(lines).items():
                assert seen.setdefault(step, seconds) == seconds
    assert len(set(seen.values())) == len(seen) >= 20


class Cliff(nn.Module):
    """NaN in training (or in evaluation alone), once its weight has moved."""

    def __init__(self, where):
        super().__init__()
        self.inner, self.where = nn.Linear(3, 4), where
        self.start = self.inner.weight[0, 0].item()

    def forward(self, x):
        moved = self.inner.weight[0, 0].item() != self.start
        broken = moved and self.training == (self.where == "training")
        return self.inner(x) * (float("nan") if broken else 1)


@pytest.mark.parametrize(
    ("where", "samples"), [("training", 160), ("evaluation", 160), ("evaluation", 8)]
)
def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(where, samples):
    """Wherever it shows: in a push, at a mark on the way, or at the very last evaluation."""
    lines, _ = learn(task_of(lambda: Cliff(where), workload={"samples": samples}), "asp")
    assert lines[-1].status == "diverged"
    assert len(entries(lines, Pushed)) < 20
    evaluations = [line for line in lines if isinstance(line, Evaluation)]
    assert len(evaluations) >= 2, "the model as it then was"
    assert isfinite(evaluations[0].loss)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.passes = nn.Linear(3, 4), 0

    def forward(self, x):
        self.passes += self.training
        if self.passes > 2:  # more than the trial makes
            raise ValueError("the user's own")
        return self.inner(x)


def test_a_model_that_breaks_fails_the_run_with_its_worker_and_keeps_the_record(tmp_path):
    settings = SETTINGS | {"output": str(tmp_path), "network": {"link": {"latency_s": 1}}}
    says = r"worker a-0#1: ValueError: the user's own .*\nThe record up to then: "
    before = torch.get_rng_state()
    with pytest.raises(raysync.RunFailed, match=says) as failed:
        raysync.run(settings, model=Broken, data=DATA)
    assert torch.equal(torch.get_rng_state(), before)
    record = raysync.load(str(failed.value).rpartition(" ")[2])
    assert record.summary["status"] == "failed"
    assert record.summary["pushes"] == 6, "two of each worker"


FULL = "CUDA out of memory. Tried to allocate 20.00 MiB."


def out_of_memory(*_, **options):
    raise torch.OutOfMemoryError(FULL)


@pytest.mark.parametrize(
    ("whose", "who"),
    [
        ("worker.gradient.GradientComputation.compute", "worker a-0#1: "),
        ("server.parameter_store.ParameterStore.__init__", ""),
    ],
)
def test_a_device_without_memory_fails_the_run_with_what_to_change(
    tmp_path, monkeypatch, whose, who
):
    """As on Ray; in a step, and where the server takes its part."""
    monkeypatch.setattr(f"raysync.training.{whose}", out_of_memory)
    with pytest.raises(raysync.RunFailed) as failed:
        raysync.run(SETTINGS | {"output": str(tmp_path)}, model=plain, data=DATA)
    said = str(failed.value).splitlines()[0]
    assert said.startswith(f"{who}OutOfMemoryError: {FULL} ")
    assert "micro_batch" in said
    for setting in ("batch_size", "micro_batch", "precision: bf16"):
        assert setting in said


def test_timers_drops_and_batch_sizes_of_a_users_paradigm():
    training = task_of(plain)
    lines, driver, _ = learned(training, "tests.builders.paradigms:Patient")
    times = push_times(lines)
    assert times["a-0"] == [1, *(0.5 + 10 * n for n in range(1, len(times["c-0"])))], (
        "half a batch takes half as long"
    )
    assert times["c-0"] == [4, *(2 + 10 * n for n in range(1, len(times["c-0"])))]
    assert not kept_gradients(driver), "what was applied or dropped is not kept"
    assert {entry.event.samples for entry in entries(lines, Pushed) if entry.event.clock} == {4}
    assert len(decided(lines, Drop)) > 3


class Spiked(nn.Module):
    """The gradient of `inner.bias` is not finite from the third batch on, while the loss is."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        y = self.inner(x)
        self.seen += 1
        return y + (0 * self.inner.bias).abs().sqrt() if self.training and self.seen > 2 else y


def told(lines):
    """The push with which a run diverged, and what its report says of that."""
    assert lines[-1].status == "diverged"
    [entry] = [entry for entry in entries(lines, Pushed) if entry.report.not_finite]
    event, found = entry.event, entry.report.not_finite
    assert entries(lines, Pushed)[-1] is entry, "it ends the run"
    for each in (event.worker, str(event.clock), found.parameter, found.first):
        assert each in lines[-1].error
    return event, found


@pytest.mark.parametrize(
    ("model", "paradigm", "first", "parameter"),
    [
        (lambda: Cliff("training"), "asp", "loss", ""),
        (Spiked, "bsp", "gradient", "inner.bias"),
        (Spiked, "asp", "gradient", "inner.bias"),
        (lambda: nn.Linear(3, 4), "asp", "weights", "weight"),
    ],
    ids=["loss", "gradient under bsp", "gradient under asp", "weights of an update"],
)
def test_what_was_not_finite_first_is_told(model, paradigm, first, parameter):
    task = task_of(model, update=TOO_FAST if first == "weights" else {"lr": 0.1})
    lines, _ = learn(task, paradigm)
    event, found = told(lines)
    assert (found.first, found.parameter) == (first, parameter)
    batch = task.reader(slot_of(event.worker)).samples(event.clock, event.samples)
    assert found.samples == batch, "those that it computed"
    assert all(str(sample) in lines[-1].error for sample in batch[:2])
    assert event.base > 0 or first != "weights"


def test_many_samples_are_counted():
    lines, _ = learn(task_of(lambda: Cliff("training"), batch_size=48), "asp")
    _, found = told(lines)
    assert len(found.samples) == 48
    assert sum(str(sample) in lines[-1].error.split() for sample in range(96)) < 12

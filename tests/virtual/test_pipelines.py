"""Decoupled runs in virtual time: what is learned, by whom, from how old gradients, and when."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import raysync
from raysync import config
from raysync.cli import app
from raysync.config import ParadigmChoice
from raysync.core.events import Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Evaluation
from raysync.decoupled.gossip import Gossip
from raysync.decoupled.plan import parts_of, plan_of
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.record.follower import Follower
from raysync.training.server.apply_plan import MEAN
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming
from tests.builders.updates import TOO_FAST, update_plan
from tests.builders.virtual import cut_task, decoupled, entries, replayed, run

pytestmark = pytest.mark.usefixtures("one_thread")


def evaluated(lines):
    return [(line.mark, *line.metrics.values()) for line in lines if isinstance(line, Evaluation)]


def losses_of(lines):
    """Of all pushes that have one."""
    losses = [entry.report.loss for entry in entries(lines, Pushed)]
    return [loss for loss in losses if loss is not None]


def rows_of(lines, samples):
    follower = Follower(samples)
    return follower.feed(lines) + follower.close()


def delays_of(lines, training, modules):
    """The rows of all pushes, whose delays are those of the schedule: in ticks 2(K - k)."""
    rows = rows_of(lines, training.workload_samples)
    for row in rows:
        assert row.delay_ticks == 2 * (modules - WorkerId(row.worker).stage)
    return rows


def check_staleness(rows):
    """In versions one less than in ticks, for the update comes before the next forward pass; the
    first batches met weights that nothing had changed yet.
    """
    for row in rows:
        assert row.clock < row.delay_ticks or row.staleness == max(0, row.delay_ticks - 1)


@pytest.mark.parametrize(("groups", "precision"), [(1, "float32"), (3, "float32"), (2, "bf16")])
def test_one_module_is_bsp_of_as_many_workers(groups, precision):
    """Bit by bit, and at the same times."""
    workers = [{"name": "gpu", "count": groups, "step_s": 0.12, "precision": precision}]
    training = cut_task(1, groups, workers=workers)
    expected, lines = run(training), decoupled(training, 1, groups)
    assert evaluated(lines) == evaluated(expected)
    assert lines[-1].at == expected[-1].at
    assert losses_of(lines) == losses_of(expected)


SYNCS = {
    "asp": {},
    "ssp": {"staleness": 1},
    "lagtuner": {},
    "k-sync": {"k": 2},
    "k-batch-sync": {"k": 3},
    "k-async": {"k": 2},
    "k-batch-async": {"k": 2},
    "backup-workers": {"backups": 1},
    "ringmaster": {"staleness": 1},
    "hybrid": {"k": 2, "staleness_tolerance": 1, "pull_interval": 3, "snapshot": "global"},
    "sync-switch": {"fraction": 0.4, "online": "elastic", "window": 2, "windows": 2},
}


@pytest.mark.parametrize("sync", SYNCS)
def test_one_module_under_a_paradigm_is_that_paradigm(sync):
    """The same pushes, on the same versions, with the same losses, at the same times, up to where
    either ends.
    """
    unequal = [
        {"name": "fast", "count": 3, "step_s": 0.1, "jitter": {"sigma": 0.2}},
        {"name": "slow", "step_s": 0.25},
    ]
    training = cut_task(
        1, 4, workers=unequal, network={"link": {"latency_s": 0.004}, "update_s": 0.001}
    )
    whole = run(training, sync, **SYNCS[sync])
    cut = decoupled(training, 1, 4, sync={"name": sync, **SYNCS[sync]})
    pushes, expected = (
        [
            (
                entry.event.worker.removeprefix("m1/"),
                entry.event.clock,
                entry.event.base,
                entry.report.loss,
                pytest.approx(entry.event.at, abs=1e-9),
            )
            for entry in entries(lines, Pushed)
        ]
        for lines in (cut, whole)
    )
    assert pushes[:100] == expected[:100]
    assert len(expected) >= 100
    assert cut[-1].status == whole[-1].status == "finished"


@pytest.mark.parametrize("sync", SYNCS)
def test_delays_are_those_of_the_schedule_under_every_paradigm(sync):
    """Whoever waits for whom."""
    choice = {"name": sync, **SYNCS[sync]}
    jitter = {"sigma": 0.3}
    workers = [{"name": "gpu", "count": 6, "step_s": 0.12, "jitter": jitter}]
    training = cut_task(3, 2, workers=workers)
    assert delays_of(decoupled(training, 3, 2, sync=choice), training, 3)
    if SYNCS[sync].get("k") or sync in ("backup-workers", "ringmaster", "hybrid"):
        return  # these are for several workers, or drop what is late
    alone = cut_task(3, 1)
    rows = delays_of(decoupled(alone, 3, 1, sync=choice), alone, 3)
    assert len(rows) == 90
    check_staleness(rows)


def test_locked_modules_are_plain_backpropagation():
    """The same losses, and no faster: one module computes at a time."""
    plain, lines = decoupled(cut_task(1, 1), 1, 1), decoupled(cut_task(4, 1), 4, 1, locked=True)
    assert losses_of(lines) == pytest.approx(losses_of(plain), abs=1e-6)
    assert evaluated(lines)[-1] == pytest.approx(evaluated(plain)[-1], abs=1e-6)
    assert {entry.report.delay_ticks for entry in entries(lines, Pushed)} == {0}
    assert lines[-1].at >= plain[-1].at


@pytest.mark.parametrize(("modules", "groups"), [(1, 1), (2, 1), (3, 2), (4, 1)])
def test_delays_are_those_of_the_schedule(modules, groups):
    training = cut_task(modules, groups)
    lines = decoupled(training, modules, groups)
    rows = delays_of(lines, training, modules)
    assert len(rows) == modules * groups * 30
    check_staleness(rows)
    assert lines[-1].status == "finished"
    choice = ParadigmChoice(name="decoupled", modules=modules, groups=groups)
    assert replayed(training, lines, choice).difference is None


def readers(training, modules):
    """The batches of each group: those of the worker that runs its first stage."""
    firsts = [*training.experiment.slots()][::modules]
    dealt = replace(training, shards=training.deal(firsts))
    return [dealt.reader(slot) for slot in firsts]


def test_every_module_learns_from_every_batch_and_its_labels_are_the_batches():
    """At a rate of nothing every loss is that of the initial network on the batch's own samples and
    labels.
    """
    training = cut_task(3, 2, update={"lr": 1e-12})
    paradigm = make("decoupled", modules=3, groups=2)
    whole = nn.Sequential(*parts_of(training.model, training.experiment.seed, paradigm))
    lines, batches = decoupled(training, 3, 2), readers(training, 3)
    group_of = {slot: index // 3 for index, slot in enumerate(training.experiment.slots())}
    losses, clocks = {}, {}
    for entry in entries(lines, Pushed):
        worker, clock, loss = entry.event.worker, entry.event.clock, entry.report.loss
        clocks.setdefault(worker, []).append(clock)
        if loss is not None:
            losses[group_of[WorkerId(worker).slot.partition("/")[2]], clock] = loss
    assert len(losses) == 60
    for (group, clock), loss in losses.items():
        x, y = batches[group].read(clock, [4])[0]
        assert loss == pytest.approx(cross_entropy(whole(x), y).item(), abs=1e-6)
    assert [*clocks.values()] == [[*range(30)]] * 6


def test_a_delayed_gradient_is_that_of_the_weights_of_its_forward_pass():
    """Two modules by hand: module 1 learns from batch b at its weights of then, with the dy of
    module 2 at its own.
    """
    training = cut_task(2, 1, update={"lr": 0.1}, workload={"samples": 4 * 6})
    paradigm = make("decoupled", modules=2, groups=1, at=["4"])
    first, second = parts_of(training.model, training.experiment.seed, paradigm)
    [batches] = readers(training, 2)
    losses = losses_of(decoupled(training, 2, 1, at=["4"]))
    # Weights of module 1 by version.
    old = [[p.detach().clone().requires_grad_() for p in first.parameters()]]
    now = [p.detach().clone().requires_grad_() for p in second.parameters()]

    def forward(part, weights, x):
        return torch.func.functional_call(
            part, dict(zip(dict(part.named_parameters()), weights, strict=True)), (x,)
        )

    def stepped(weights, gradients):
        pairs = zip(weights, gradients, strict=True)
        return [(p - 0.1 * g).detach().requires_grad_() for p, g in pairs]

    got = []
    for batch in range(6):
        x, y = batches.read(batch, [4])[0]
        then = old[max(0, batch - 1)]
        output = forward(first, then, x)
        h = output.detach().requires_grad_()
        loss = cross_entropy(forward(second, now, h), y)
        got.append(loss.item())
        *gradients, dy = torch.autograd.grad(loss, [*now, h])
        now = stepped(now, gradients)
        old.append(stepped(old[-1], torch.autograd.grad(output, then, dy)))
    assert losses == pytest.approx(got, abs=1e-6)


@pytest.mark.parametrize("modules", [1, 3])
def test_gradients_and_weights_may_be_mixed_alike_for_sgd(modules):
    training = cut_task(modules, 2, update={"lr": 0.1})
    full = {"mix": "grad", "topology": [[0.5, 0.5], [0.5, 0.5]]}
    server, *mixed = (
        [row[2] for row in evaluated(decoupled(training, modules, 2, **settings))]
        for settings in ({}, full, {"mix": "weight"})
    )
    assert mixed == [pytest.approx(server, abs=1e-6)] * 2


def plan_for(groups):
    """An update of one push of each replica."""
    return update_plan([4] * groups, replicas=list(range(groups)))


FULLY = {"mix": "weight"}


@pytest.mark.parametrize(
    "settings",
    [FULLY, FULLY | {"mix_every": 3}, FULLY | {"topology": "ring"}, {"mix_every": 3}],
    ids=str,
)
def test_replicas_under_full_averaging_are_equal_and_mixing_keeps_their_mean(settings):
    """Equal after each round in which they are mixed, and after no other."""
    torch.manual_seed(0)
    paradigm = make("decoupled", modules=1, groups=4, **settings)
    update = config.validate({"update": {"lr": 0.1}}).update
    model = FlatModel(nn.Linear(6, 1, bias=False))
    gossip = Gossip(model, update, paradigm.matrix, paradigm.mix, paradigm.mix_every)
    server = shard_of(model, update)
    for round_number in range(1, 7):
        vectors = [torch.randn(6) for _ in range(4)]
        gossip.apply(plan_for(4), vectors)
        server.apply(plan_for(4), vectors)
        torch.testing.assert_close(gossip.publish(MEAN), server.publish())
        replicas = [gossip.publish(group).clone() for group in range(4)]
        is_mixed = round_number % paradigm.mix_every == 0
        are_equal = all(torch.equal(one, replicas[0]) for one in replicas)
        fully = settings.get("mix") == "weight" and "topology" not in settings
        assert are_equal == (fully and is_mixed)


def test_a_matrix_mixes_as_it_says():
    matrix = [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]
    update = config.validate({"update": {"lr": 1.0, "lr_scaling": "none"}}).update
    module = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(module.weight)
    gossip = Gossip(FlatModel(module), update, matrix, "weight", 1)
    gossip.apply(plan_for(3), list(-torch.eye(3)))  # x becomes the identity's rows
    torch.testing.assert_close(
        torch.stack([gossip.publish(group) for group in range(3)]), torch.tensor(matrix)
    )


@pytest.mark.parametrize(
    ("sync", "bound"),
    [
        ("asp", None),
        ({"name": "ssp", "staleness": 2}, 2),
        ("lagtuner", 15),
        ({"name": "sync-switch", "fraction": 0.5, "online": "elastic"}, None),
    ],
)
def test_any_paradigm_holds_replicas_together(sync, bound):
    groups = [
        {"name": "slow", "count": 2, "step_s": 0.4},
        {"name": "fast", "count": 4, "step_s": 0.1},
    ]
    training = cut_task(2, 3, workers=groups, network={"link": {"latency_s": 0.002}})
    lines = decoupled(training, 2, 3, sync=sync)
    assert lines[-1].status == "finished", lines[-1]
    choice = ParadigmChoice(name="decoupled", modules=2, groups=3, sync=sync)
    again = replayed(training, lines, choice)
    assert again.difference is None
    restored = make("decoupled", modules=2, groups=3, sync=sync).machine(None)
    restored.restore(again.machine.snapshot())
    assert restored.snapshot() == again.machine.snapshot()
    rows = rows_of(lines, training.workload_samples)
    assert bound is None or max(row.lead for row in rows) <= bound
    if sync in ("asp", "lagtuner"):
        trained = Counter()
        for row in rows:
            trained[WorkerId(row.worker).stage] += row.samples * (row.outcome == "applied")
        assert trained == {1: 360, 2: 360}
    assert {entry.report.why for entry in entries(lines, Left)} == {"its group has no batch left"}


def test_the_pipeline_overlaps():
    """Four equal modules: once it is full a batch leaves every quarter of a step, and a little for
    the servers.
    """
    training = cut_task(4, 1, timing="only")
    alone = cut_task(1, 1, timing="only")
    lines, whole = decoupled(training, 4, 1), decoupled(alone, 1, 1)
    times = [
        entry.event.at
        for entry in entries(lines, Pushed)
        if WorkerId(entry.event.worker).stage == 4
    ]
    shares = plan_of(training, make("decoupled", modules=4, groups=1)).shares
    assert max(shares.values()) == pytest.approx(0.25, abs=0.02)
    periods = [later - earlier for earlier, later in pairwise(times[8:])]
    assert periods == pytest.approx([0.12 * max(shares.values())] * len(periods))
    assert whole[-1].at / lines[-1].at > 3


def test_reduced_activations_have_half_the_bytes_to_travel():
    """In groups of several precisions each has its own; the classes leave in the last one's."""
    workers = [
        {"name": name, "count": 2, "step_s": 0.12, "precision": precision}
        for name, precision in (("plain", "float32"), ("half", "bf16"))
    ]
    mixed = [workers[0] | {"name": name, "count": 1} for name in "ab"]
    mixed[0]["precision"] = "bf16"
    training = cut_task(2, 3, workers=[*workers, *mixed])
    plan = plan_of(training, make("decoupled", modules=2, groups=3))
    whole, classes = plan.output_bytes[0, 1], plan.output_bytes[0, 2]
    assert [plan.output_bytes[group, 1] for group in (1, 2)] == [whole / 2, whole / 2]
    assert [plan.output_bytes[group, 2] for group in (1, 2)] == [classes / 2, classes]


def test_stages_of_several_precisions_learn_alike():
    def losses(*precisions):
        workers = [
            {"name": f"w{number}", "step_s": 0.12, "precision": precision}
            for number, precision in enumerate(precisions)
        ]
        training = cut_task(3, 1, workers=workers, workload={"samples": 4 * 20})
        return losses_of(decoupled(training, 3, 1))

    exact, tf32 = losses(*["float32"] * 3), losses(*["tf32"] * 3)
    assert exact == tf32, "a CPU rounds nothing then"
    for precisions in (["bf16"] * 3, ["float32", "bf16", "float32"], ["bf16", "float32", "bf16"]):
        rounded = losses(*precisions)
        assert rounded != exact
        assert rounded == pytest.approx(exact, rel=0.02)


def test_running_forward_again_takes_longer_and_uses_the_present_weights():
    training = cut_task(3, 1, update={"lr": 0.2})
    stash, latest = (decoupled(training, 3, 1, weights=weights) for weights in ("stash", "latest"))
    assert latest[-1].at > stash[-1].at
    assert evaluated(latest)[0] == evaluated(stash)[0]
    assert evaluated(latest)[-1] != evaluated(stash)[-1]
    rows = [row for row in rows_of(latest, training.workload_samples) if row.clock > 4]
    assert {row.staleness for row in rows} == {0}, (
        "what is computed on the present weights is not stale"
    )


def test_no_more_is_in_flight_than_the_delay():
    driver = driver_of(cut_task(4, 1), make("decoupled", modules=4, groups=1))
    seen = dict.fromkeys(range(1, 5), 0)
    driver.start()
    while driver.is_running:
        driver.backend.wait()
        for stage in seen:
            actor = driver.backend.processes.of_actor[f"m{stage}/gpu-{stage - 1}#1"].actor
            seen[stage] = max(seen[stage], len(actor.state()["stashed"]))
    assert seen == {1: 6, 2: 4, 3: 2, 4: 0}
    kept = driver.backend.state()["calls"].values()
    assert all(call.get("answer") == 30 for call in kept), "nothing but the newest weights"


def test_a_network_that_diverges_says_so():
    training = cut_task(2, 1, update=TOO_FAST)
    lines = decoupled(training, 2, 1)
    assert lines[-1].status == "diverged"
    [entry] = [entry for entry in entries(lines, Pushed) if entry.report.not_finite]
    found = entry.report.not_finite
    assert found.first in ("weights", "activations", "loss", "gradient")
    assert len(found.samples) == entry.event.samples
    assert entry.event.worker in lines[-1].error


SIZES = {"name": "sync-switch", "batch_sizes": {"asp": 4}}
GLOBAL = {"name": "hybrid", "k": 1, "snapshot": "global", "pull_interval": 2}
TWO = {"modules": 2, "groups": 2}
RUN = {
    "engine": "virtual",
    "workers": [{"count": 4}],
    "model": {"name": "mlp", "hidden": [8, 8, 8]},
}


@pytest.mark.parametrize(
    ("settings", "parameters", "says"),
    [
        ({"model": {"name": "mlp", "hidden": [8]}}, {"modules": 4, "groups": 1}, "2 modules 4"),
        ({"cluster": {"server_shards": 2}}, TWO, "server"),
        ({"cluster": {"min_workers": 2}}, TWO, "decoupled: cluster.min_workers: 2:"),
        ({"update": {"delay_compensation": "constant"}}, TWO, "use shrink"),
        (
            {"update": {"combine": "sum", "lr_scaling": "none"}},
            {"modules": 2, "groups": 2, "mix": "weight"},
            "mixes means",
        ),
        ({"update": {"project_radius": 1}}, TWO, "server"),
        ({"update": {"optimizer": "muon", "momentum": 0.9}}, TWO, "muon"),
        ({}, TWO | {"sync": SIZES}, "sync: sync-switch: batch_sizes:"),
        ({"update": {"staleness_scaling": "inverse"}}, TWO, "update.staleness_scaling: inverse:"),
        ({"update": {"lr_scaling": "inverse-root"}}, TWO, "update.lr_scaling: inverse-root:"),
        ({"workers": [{"count": 4, "devices_per_worker": 2}]}, TWO, "devices_per_worker: 2:"),
        (
            {"engine": "ray", "workers": [{"count": 4, "link": {"latency_s": 1}}]},
            TWO,
            "worker: link:",
        ),
        ({"faults": [{"kind": "crash", "worker": "worker-1", "at_s": 1}]}, TWO, "faults: crash:"),
        ({"engine": "ray", "faults": [{"kind": "latency", "added_s": 1}]}, TWO, "latency:"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_the_run(tmp_path, settings, parameters, says):
    experiment = (
        RUN | settings | {"output": str(tmp_path), "paradigm": {"name": "decoupled", **parameters}}
    )
    with pytest.raises(ConfigError, match=naming(says)) as refused:
        raysync.run(experiment)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sync",
    [
        "bsp",
        GLOBAL,
        {"name": "ringmaster", "paradigm": "ssp"},
        {"name": "sync-switch", "fraction": 0.5, "then": {"name": "hybrid", "k": 1}},
    ],
    ids=str,
)
def test_what_is_refused_of_a_paradigm_is_that_setting_alone(tmp_path, sync):
    """A run under any other is recorded as one of the paradigm, with a row for each stage."""
    paradigm = {"name": "decoupled", "modules": 2, "groups": 2, "sync": sync}
    settings = {"paradigm": paradigm, "timing": "only", "workload": {"samples": 640}}
    summary = raysync.run(RUN | settings | {"output": str(tmp_path)}).summary
    assert (summary["status"], summary["paradigm"]) == ("finished", "decoupled")
    stages = [f"m{index % 2 + 1}/worker-{index}#1" for index in (0, 2, 1, 3)]
    assert sorted(row["id"] for row in summary["per_worker"]) == stages
    assert summary["samples"] == 640 or sync != "bsp"


def test_compare_refuses_it_before_it_trains_another(tmp_path):
    paradigm = {"name": "decoupled", "modules": 2, "groups": 2, "sync": SIZES}
    file = tmp_path / "both.yaml"
    settings = RUN | {"output": str(tmp_path / "runs"), "paradigms": ["bsp", paradigm]}
    file.write_text(yaml.safe_dump(settings))
    done = CliRunner().invoke(app, ["compare", str(file)])
    assert isinstance(done.exception, ConfigError)
    assert not (tmp_path / "runs").exists()

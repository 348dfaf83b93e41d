"""BSP with n workers is single-process training on the n-fold batch."""

from functools import partial

import pytest
import torch

from raysync import config
from raysync.core.events import Pushed
from raysync.training.preparation import prepare
from tests.builders.plain_torch import flat, trained_on_whole_batches
from tests.builders.tasks import Sums
from tests.builders.virtual import entries, learn, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS, ROUNDS, BATCH = 4, 12, 16
SETTINGS = {
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 600},
    "batch_size": BATCH,
    "workers": [{"name": f"w{n}", "step_s": 1 + n} for n in range(WORKERS)],
    "update": {
        "lr": 0.05,
        "momentum": 0.9,
        "weight_decay": 1e-3,
        "lr_scaling": "none",
        "schedule": {"name": "milestones", "milestones": [0.5]},
    },
    "workload": {"iterations_per_worker": ROUNDS},
}


SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
FALLING = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[ROUNDS // 2])


def train(training, name):
    """The parameters after a run on the virtual engine."""
    lines, driver = learn(training, name)
    assert lines[-1].status == "finished"
    return weights_of(driver)


def train_alone(training, rounds=[[BATCH] * WORKERS] * ROUNDS):
    """torch, one process, one batch made of the workers' batches."""
    return flat(trained_on_whole_batches(training, SGD, rounds, FALLING))


def test_bsp_equals_the_n_fold_batch():
    """To 1e-5, with momentum, weight decay and a milestone.

    A model without batch-norm: that normalises each worker's batch by itself, so no data-parallel
    system equals it.
    """
    training = prepare(config.validate(SETTINGS))
    assert (train(training, "bsp") - train_alone(training)).abs().max().item() < 1e-5


def test_bsp_of_unequal_batches_is_the_batch_of_all():
    """Groups of 8, 16 and 24 samples: 64 samples a round, as with four batches of 16."""
    sizes = [8, 16, 16, 24]
    workers = [
        group | {"batch_size": size} for group, size in zip(SETTINGS["workers"], sizes, strict=True)
    ]
    training = prepare(config.validate(SETTINGS | {"workers": workers}))
    assert [len(shard) for shard in training.shards.values()] == [75, 150, 150, 225]
    alone = train_alone(training, [sizes] * ROUNDS)
    assert (train(training, "bsp") - alone).abs().max().item() < 1e-5


def test_balanced_bsp_is_the_batch_of_all():
    """The first takes what its memory holds, 24 of the 64 samples; of the 40 others, speeds of 1/2,
    1/3 and 1/4 give 18.46, 12.31 and 9.23.
    """
    workers = [group | {"max_batch": 24} for group in SETTINGS["workers"]]
    training = prepare(config.validate(SETTINGS | {"workers": workers}))
    lines, driver = learn(training, "balanced")
    rounds = [BATCH] * WORKERS, *[[24, 19, 12, 9]] * (ROUNDS - 1)
    pushes = entries(lines, Pushed)
    for clock, sizes in enumerate(rounds):
        pushed = [entry.event for entry in pushes if entry.event.clock == clock]
        assert [event.samples for event in sorted(pushed, key=lambda each: each.worker)] == sizes
    alone = train_alone(training, rounds)
    assert (weights_of(driver) - alone).abs().max().item() < 1e-5


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_users_task_is_trained_as_a_plain_loop_trains_it(micro_batch):
    """Dicts of padded sequences, read one by one with noise, with a loss of the task's own."""
    settings = {key: value for key, value in SETTINGS.items() if key != "data"}
    settings |= {"batch_size": 5, "micro_batch": micro_batch}
    training = prepare(config.validate(settings), task=Sums(samples=60))
    module = training.build()
    optimizer = SGD(module.parameters())
    scheduler = FALLING(optimizer)
    for clock in range(ROUNDS):
        batches = [training.reader(slot).read(clock, [5])[0] for slot in training.shards]
        optimizer.zero_grad()
        (sum(training.task.loss(module, batch) for batch in batches) / WORKERS).backward()
        optimizer.step()
        scheduler.step()
    assert (train(training, "bsp") - flat(module)).abs().max().item() < 1e-5


def test_asp_is_something_else():
    """The test above can fail: with stale gradients the models differ."""
    training = prepare(config.validate(SETTINGS))
    assert (train(training, "asp") - train_alone(training)).abs().max().item() > 1e-3


def test_a_worker_alone_is_plain_sgd_under_every_paradigm():
    training = prepare(
        config.validate(
            SETTINGS
            | {"workers": [{"step_s": 1}], "workload": {"iterations_per_worker": WORKERS * ROUNDS}}
        )
    )
    results = [train(training, name) for name in ("bsp", "asp", "ssp", "lagtuner")]
    assert all(torch.equal(result, results[0]) for result in results)

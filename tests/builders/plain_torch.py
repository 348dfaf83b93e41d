"""A task for any module of a test, and what plain torch makes of it over the same batches."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import raysync
from raysync import config
from raysync.training.preparation import prepare
from tests.builders.virtual import learn, weights_of

BATCH, ROUNDS, RATE = 8, 6, 0.2


def rows(seed, count=64):
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Rows(raysync.Task):
    """Rows in two classes, for a model that the test gives."""

    def __init__(self, build, loss=None, metrics=None):
        self.build, self.own_loss, self.own_metrics = build, loss, metrics

    def build_model(self):
        return self.build()

    def train_set(self):
        return rows(0)

    def test_set(self):
        return rows(1, 32)

    def loss(self, model, batch):
        if self.own_loss is not None:
            return self.own_loss(model, batch)
        return cross_entropy(model(batch[0]), batch[1])

    def metrics(self, model, batch):
        return {} if self.own_metrics is None else self.own_metrics(model, batch)


def settings(count=1, **more):
    return {
        "engine": "virtual",
        "batch_size": BATCH,
        "workers": [{"name": f"w{n}", "step_s": 1 + n / 10} for n in range(count)],
        "update": {"lr": RATE, "lr_scaling": "none"},
        "workload": {"iterations_per_worker": ROUNDS},
        "evaluation": {"marks": 2},
    } | more


def plan(task, count=1, **more):
    return prepare(config.validate(settings(count, **more)), task=task)


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def trained_alone(task, plan):
    """Plain torch: BSP by hand; the module of each worker."""
    slots = list(plan.shards)
    modules = [plan.build() for _ in slots]
    readers = [plan.reader(slot) for slot in slots]
    for clock in range(ROUNDS):
        gradients = []
        for module, reader in zip(modules, readers, strict=True):
            module.zero_grad()
            [batch] = reader.read(clock, [BATCH])
            torch.default_generator.manual_seed(reader.seed(clock))
            task.loss(module, batch).backward()
            trained = [p for p in module.parameters() if p.requires_grad]
            gradients.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
        means = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
        with torch.no_grad():
            for module in modules:
                trained = [p for p in module.parameters() if p.requires_grad]
                for parameter, gradient in zip(trained, means, strict=True):
                    parameter -= RATE * gradient
    return modules


def recorded(task, output, **more):
    """The record of a run with one worker, and the module that plain torch trains."""
    record = raysync.run(settings(output=str(output), **more), task=task)
    [module] = trained_alone(task, plan(task))
    return record, module


def check_trained_as_alone(task, workers=1, **more):
    """Check that a virtual run of BSP trains a task to the weights of `trained_alone`."""
    training = plan(task, workers, **more)
    _, driver = learn(training)
    [module, *_] = trained_alone(task, training)
    weights = weights_of(driver)[: training.parameters]
    torch.testing.assert_close(weights, flat(module), rtol=0, atol=1e-6)


def trained_on_whole_batches(training, optimizer, sizes, scheduler=None):
    """Plain torch: one process steps by the batches of all workers, joined.

    Args:
        optimizer: makes one for parameters.
        sizes: of each worker's batch, in each round.
        scheduler: makes one for an optimizer.
    """
    module, data = training.build(), training.data
    own = optimizer(module.parameters())
    schedule = None if scheduler is None else scheduler(own)
    batches = [training.batches(slot) for slot in training.shards]
    for clock, its in enumerate(sizes):
        shares = zip(batches, its, strict=True)
        indices = [index for one, size in shares for index in one.indices(clock, size)]
        own.zero_grad()
        x, y = data.samples(data.train_x[indices]), torch.from_numpy(data.train_y[indices])
        cross_entropy(module(x), y).backward()
        own.step()
        if schedule is not None:
            schedule.step()
    return module


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])

"""What a run should have learned: plain torch, from the journal's lines, without flat vectors, machine or store."""

import copy

import torch
from torch.nn.functional import cross_entropy

from raysync.core.decisions import Apply
from raysync.core.events import Left, Pushed
from raysync.core.journal import Entry
from tests.virtual.parts import slot_of


class Oracle:
    """Plain SGD at a constant rate: a gradient of version `base` for each push, a step for each update."""

    def __init__(self, task):
        self.task = task
        first = task.model.build()
        self.versions = [[p.detach().clone() for p in first.parameters()]]
        self.modules = {}  # worker -> its own module, for its batch-norm statistics
        self.fresh = first
        self.pending = {}  # push -> (gradient, samples, buffers)
        self.statistics = {}  # live worker -> buffers of its latest push that was applied
        self.gone = set()
        self.losses = {}

    def follow(self, lines):
        """Check the reported losses, and go through all updates."""
        for line in lines:
            if not isinstance(line, Entry):
                continue
            if isinstance(line.event, Pushed):
                loss = self.compute(line.event)
                assert abs(loss - line.report["loss"]) < 1e-5 * max(1, abs(loss)), line.event
            if isinstance(line.event, Left):
                self.gone.add(line.event.worker)
                self.statistics.pop(line.event.worker, None)
            for decision in line.decisions:
                if isinstance(decision, Apply):
                    self.step(decision.pushes)
        return self

    def compute(self, event):
        """Forward and backward in as many parts as the worker has devices."""
        task, slot = self.task, slot_of(event.worker)
        module = self.modules.setdefault(event.worker, copy.deepcopy(self.fresh)).train()
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), self.versions[event.base], strict=True):
                parameter.copy_(value)
        indices = task.batches(slot).indices(event.clock, event.samples)
        x, y = task.data.samples(task.data.train_x[indices]), torch.from_numpy(task.data.train_y[indices])
        module.zero_grad()
        loss, devices, after = 0.0, task.groups[slot].devices, []
        before = [buffer.clone() for buffer in module.buffers()]
        for part_x, part_y in zip(x.tensor_split(devices), y.tensor_split(devices), strict=True):
            for buffer, value in zip(module.buffers(), before, strict=True):
                buffer.copy_(value)
            part = cross_entropy(module(part_x), part_y) * (len(part_y) / len(y))
            part.backward()
            loss += part.item()
            after.append([buffer.clone().double() for buffer in module.buffers()])
        for buffer, *values in zip(module.buffers(), *after, strict=True):
            buffer.copy_(torch.stack(values).mean(dim=0))
        gradient = [parameter.grad.clone() for parameter in module.parameters()]
        self.pending[event.worker, event.clock] = (gradient, event.samples, [buffer.clone() for buffer in module.buffers()])
        return loss

    def step(self, pushes):
        """The sample-weighted mean, at lr times the number of pushes."""
        taken = [self.pending.pop(push) for push in pushes]
        rate = self.task.experiment.update.lr * len(taken) / sum(samples for _, samples, _ in taken)
        parameters = [value.clone() for value in self.versions[-1]]
        for gradient, samples, _ in taken:
            for parameter, part in zip(parameters, gradient, strict=True):
                parameter -= rate * samples * part
        self.versions.append(parameters)
        for (worker, _), (_, _, buffers) in zip(pushes, taken, strict=True):
            if worker not in self.gone:
                self.statistics[worker] = buffers

    def vector(self):
        """Parameters, and behind them the mean of the live workers' statistics."""
        flat = [value.reshape(-1) for value in self.versions[-1]]
        statistics = [torch.cat([buffer.reshape(-1).double() for buffer in buffers])
                      for buffers in self.statistics.values() if buffers]
        return torch.cat([*flat, *([torch.stack(statistics).mean(dim=0).float()] if statistics else [])])

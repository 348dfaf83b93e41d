"""What a run should have learned: plain torch, from the journal's lines, without flat vectors,
machine or store.

Of the update's settings it knows lr (also of a phase), staleness_scaling and delay_compensation
(constant).
"""

import copy

import torch
from torch.nn.functional import cross_entropy

from raysync.core.decisions import Apply
from raysync.core.events import Left, Pushed
from raysync.core.journal import Entry
from tests.builders.virtual import slot_of


class Oracle:
    """Plain SGD at a constant rate: a gradient of version `base` for each push, a step for each
    update.
    """

    def __init__(self, training):
        self.training = training
        first = training.build()
        self.versions = [[p.detach().clone() for p in first.parameters()]]
        self.modules = {}  # worker -> its own module, for its batch-norm statistics
        self.fresh = first
        self.pending = {}  # push -> (gradient, samples, buffers, base)
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
                assert abs(loss - line.report.loss) < 1e-5 * max(1, abs(loss)), line.event
            if isinstance(line.event, Left):
                self.gone.add(line.event.worker)
                self.statistics.pop(line.event.worker, None)
            for decision in line.decisions:
                if isinstance(decision, Apply):
                    self.step(decision.pushes, decision.phase)
        return self

    def compute(self, event):
        """Forward and backward in as many parts as the worker has devices."""
        training, slot = self.training, slot_of(event.worker)
        module = self.modules.setdefault(event.worker, copy.deepcopy(self.fresh)).train()
        with torch.no_grad():
            for parameter, value in zip(
                module.parameters(), self.versions[event.base], strict=True
            ):
                parameter.copy_(value)
        indices = training.batches(slot).indices(event.clock, event.samples)
        x, y = (
            training.data.samples(training.data.train_x[indices]),
            torch.from_numpy(training.data.train_y[indices]),
        )
        module.zero_grad()
        loss, devices, after = 0.0, training.groups[slot].devices, []
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
        buffers = [buffer.clone() for buffer in module.buffers()]
        self.pending[event.worker, event.clock] = (gradient, event.samples, buffers, event.base)
        return loss

    def step(self, pushes, phase):
        """The sample-weighted mean, at lr times the number of pushes."""
        update, taken = self.training.experiment.update, [self.pending.pop(push) for push in pushes]
        lr = update.phases[phase].lr if phase in update.phases else update.lr
        rate = lr * len(taken) / sum(samples for _, samples, _, _ in taken)
        strength = update.delay_compensation.strength if update.delay_compensation else 0
        parameters = [value.clone() for value in self.versions[-1]]
        for gradient, samples, _, base in taken:
            behind = (
                len(self.versions) - 1 - base if update.staleness_scaling.name == "inverse" else 1
            )
            for parameter, part, now, then in zip(
                parameters, gradient, self.versions[-1], self.versions[base], strict=True
            ):
                parameter -= (
                    rate * samples / max(1, behind) * (part + strength * part**2 * (now - then))
                )
        self.versions.append(parameters)
        for (worker, _), (_, _, buffers, _) in zip(pushes, taken, strict=True):
            if worker not in self.gone:
                self.statistics[worker] = buffers

    def vector(self):
        """Parameters, and behind them the mean of the live workers' statistics; of counts, the bits
        of those of the first worker.
        """
        flat = [value.reshape(-1) for value in self.versions[-1]]
        counts = []
        of_workers = [self.statistics[worker] for worker in sorted(self.statistics)]
        for values in zip(*of_workers, strict=True):
            if values[0].is_floating_point():
                flat.append(torch.stack(values).double().mean(dim=0).float().reshape(-1))
            else:
                counts.append(values[0].reshape(1).view(torch.float32))
        return torch.cat(flat + counts)

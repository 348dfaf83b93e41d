"""What the options of a worker gain on a device, and what they change in its numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from plain_training import PRECISIONS, Setting, told
from step_budget import ms

from raysync.config import WorkerGroup
from raysync.training.preparation import TrainingPlan
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.wire import FORMATS
from raysync.training.worker.compiling import refuse_without_compiler
from raysync.training.worker.device import try_kernels
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.precision import refuse_unsupported

CHOICES = ((False, False), (True, False), (True, True))
"""Whether kernels are tried, whether the loss is compiled."""


def computing_options(setting: Setting) -> Iterator[Sequence[str]]:
    """Yield for each precision and choice the milliseconds of a step without drawing its batch, and
    how far its gradient is from that of the first choice of the precision; or why there are none.
    """
    device = setting.device()
    for precision in PRECISIONS:
        exact: torch.Tensor | None = None
        for tries, compiles in CHOICES:
            name = [precision, "tried" if tries else "guessed", "compiled" if compiles else ""]
            try:
                refuse_unsupported(precision, device)
                if compiles:
                    refuse_without_compiler(device)
                took, gradient = _step(replace(setting, precision=precision), tries, compiles)
            except Exception as error:  # of a compiler, or of memory: the other rows still count
                yield [*name, told(error), ""]
                continue
            exact = gradient if exact is None else exact
            apart = float((gradient - exact).norm() / exact.norm())
            yield [*name, f"{took:.2f}", f"{apart:.1e}"]


def _step(setting: Setting, tries: bool, compiles: bool) -> tuple[float, torch.Tensor]:
    """Return the milliseconds of a step, and its gradient (P,)."""
    training, device = setting.prepared(), setting.device()
    [slot] = training.groups
    computation = GradientComputation(
        training.build(),
        training.task,
        [device],
        WorkerGroup(precision=setting.precision, compile=compiles),
    )
    reader = training.reader(slot)
    drawn = reader.read(0, [setting.batch_size])
    reader.read = lambda clock, sizes: drawn  # type: ignore[method-assign]
    try_kernels(tries)
    took = ms(lambda: computation.compute(reader, 0, setting.batch_size), device)
    return took, computation.outgoing()[: computation.model.size].clone()


def wire_options(setting: Setting) -> Iterator[Sequence[str]]:
    """Yield for each format the milliseconds in which a gradient leaves the device, and in which
    the server makes an update of one gradient, and takes each further one.
    """
    training, device = setting.prepared(), setting.device()
    for wire in FORMATS:
        computation = GradientComputation(training.build(), training.task, [device], wire=wire)
        computation.model.gradient.normal_()
        took = [ms(computation.outgoing, device), *_updates_ms(training, computation, wire)]
        yield [wire, *(f"{each:.2f}" for each in took)]


def _updates_ms(
    training: TrainingPlan, computation: GradientComputation, wire: str
) -> tuple[float, float]:
    """Return the milliseconds of an update by one gradient, and of each further one."""
    model, gradient = computation.model, computation.outgoing().clone()
    store = ParameterStore(model.initial().cpu(), model.size, training.experiment.update, wire=wire)

    def update(pushes: int) -> None:
        plan = ApplyPlan([None] * pushes, [1] * pushes, 0.0, "", [0] * pushes, version=1)
        store.apply(plan, [gradient] * pushes)

    alone = ms(lambda: update(1), "cpu")
    return alone, max(0.0, (ms(lambda: update(5), "cpu") - alone) / 4)

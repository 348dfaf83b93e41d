"""The fewest samples that a task can compute at once: batch norm needs two, for example."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import lcm

from torch import nn

from raysync.config import Experiment
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.training.models.initial_model import InitialModel
from raysync.training.trials.task_trial import TRIED, tried_indices, why_too_few
from raysync.training.worker.gradient import cut_batch

SMALL = 4  # batches of fewer samples are tried even if all batches are as small


def smallest_batch(
    experiment: Experiment,
    model: InitialModel,
    module: nn.Module,
    count: int,
    *,
    for_balanced: bool = False,
) -> int:
    """Find the fewest samples a device can compute at once; 1 without `balanced` batch sizes.

    Args:
        module: as the model builds it; its buffers may change.
        for_balanced: `balanced` may run though the experiment does not name it.

    Raises:
        ConfigError: a setting leads to a smaller batch than the task can compute.
    """
    pieces, balanced = list(_pieces(experiment)), list(_balanced(experiment))
    is_divided = bool(balanced) or for_balanced
    least = 1 if is_divided else min(size for size, _ in pieces)
    most = min(TRIED, count)
    if least >= min(max(experiment.batch_size, SMALL), most):  # the task is tried on as many anyhow
        return 1

    def failure(size: int) -> str:
        return why_too_few(model, module, tried_indices(experiment, count, size))

    reason = failure(least)
    if not reason or failure(most):  # a task that fails at every size does not fail for its size
        return 1
    fewest = least + bisect_left(range(least, most), True, key=lambda size: not failure(size))
    needs = f"{model.task.name} needs at least {fewest} samples at once, with fewer: {reason}"
    for size, where in pieces:
        if size < fewest:
            raise ConfigError(f"{where}: a device would compute {size} at once; {needs}.")
    for paradigm in balanced:
        _check_shares(experiment, paradigm, fewest, needs)
    return fewest if is_divided else 1


def _pieces(experiment: Experiment) -> Iterator[tuple[int, str]]:
    """Yield each setting that sizes a batch, with the fewest samples a device then computes."""
    micro_batch = experiment.micro_batch
    for where, size, groups in experiment.named_batch_sizes():
        for group in groups:
            least = min(map(min, cut_batch(size, group.devices, micro_batch)))
            is_cut = least < size // group.devices
            yield least, f"micro_batch: {micro_batch}" if is_cut else f"{where}: {size}"


def _balanced(experiment: Experiment) -> Iterator[Balanced]:
    for choice in (experiment.paradigm, *experiment.paradigms):
        if choice.can_be_made:
            yield from _balanced_in(experiment.make(choice))


def _balanced_in(paradigm: AnyParadigm) -> Iterator[Balanced]:
    if isinstance(paradigm, Balanced):
        yield paradigm
    for inner in vars(paradigm).values():
        if isinstance(inner, Paradigm):
            yield from _balanced_in(inner)


def _check_shares(experiment: Experiment, paradigm: Balanced, fewest: int, needs: str) -> None:
    micro_batch = experiment.micro_batch
    if micro_batch is None or (micro_batch + 1) // 2 >= fewest:  # one sample more makes two pieces
        return
    whole = lcm(*(micro_batch * group.devices for group in experiment.workers))
    if paradigm.multiple % whole:
        raise ConfigError(
            f"micro_batch: {micro_batch}: {paradigm.name} may give a device a share of which it"
            f" would compute {(micro_batch + 1) // 2} at once; {needs}."
            f"\nAllowed: {paradigm.name} with multiple: {whole}."
        )

"""Parameter groups: slices of the flat vector with a weight decay and a learning rate of their own.

Shape legend: P = trainable parameters of a whole model, of a stage, or of a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate, groupby, pairwise
from math import prod
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from raysync.config import Update
from raysync.errors import ConfigError, unknown_name

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""torch's normalisation layers with parameters; `_NormBase` are batch and instance norms."""

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

SHOWN = 12
"""The number of names that an error lists."""


@dataclass(frozen=True)
class NamedParameter:
    """A parameter of a network, in the order of the flat vector."""

    name: str
    """Its name in the whole network, as in `named_parameters()`; empty if it has none there."""
    size: int
    """The number of its elements."""
    is_norm_or_bias: bool
    """Whether `no_decay: norm-and-bias` spares it."""
    matrix: tuple[int, int] | None
    """Rows and columns, if it is a matrix of a hidden layer."""


def parameters_of(module: nn.Module, names: Sequence[str] | None = None) -> list[NamedParameter]:
    """Return the trainable parameters of a module.

    A bias or a parameter of a norm is what timm (`param_groups_weight_decay`) takes for one: it has
    at most one dimension, or is called `bias`; and, as in Hugging Face's Trainer, all that a
    normalisation layer has, such as a LayerNorm's weights over several dimensions.

    Matrices of hidden layers are what Jordan's Muon steps along: all parameters with two or more
    dimensions (a convolution has a row for each channel that it makes), but for norms, embeddings
    and the output layer, which is taken to be the last of them in the module's order.

    Args:
        module: a whole network, or a part of it.
        names: those of its trainable parameters in the whole network; default: as in the module.
    """
    trainable = [each for each in module.named_parameters() if each[1].requires_grad]
    norms, embeddings = _within(module, NORMS), _within(module, EMBEDDINGS)
    called = [name for name, _ in trainable] if names is None else names
    spared = [
        parameter.ndim <= 1 or name.split(".")[-1] == "bias" or id(parameter) in norms
        for name, parameter in trainable
    ]
    matrices = [
        parameter
        for (_, parameter), without in zip(trainable, spared, strict=True)
        if not without and id(parameter) not in embeddings
    ]
    hidden = {id(parameter) for parameter in matrices[:-1]}
    return [
        NamedParameter(
            name=name,
            size=parameter.numel(),
            is_norm_or_bias=without,
            matrix=(len(parameter), parameter[0].numel()) if id(parameter) in hidden else None,
        )
        for name, (_, parameter), without in zip(called, trainable, spared, strict=True)
    ]


def _within(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> set[int]:
    """Return the ids of the parameters that layers of some kinds have."""
    return {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, kinds)
        for parameter in layer.parameters(recurse=False)
    }


@dataclass(frozen=True)
class FlatParameterGroup:
    """The slices of a vector (P,) that are updated alike."""

    spans: tuple[slice, ...]
    """The slices, in their order; two of them do not touch."""
    weight_decay: float | None = None
    """The weight decay; None: that of the update, or of its phase."""
    lr_factor: float = 1.0
    """The learning rate is that of the update times this."""
    matrix: tuple[int, int] | None = None
    """Rows and columns of each of the matrices that it consists of; None: all is elementwise."""

    def pieces(self, longest: int) -> Iterator[slice]:
        """Yield the slices, cut into matrices, or else into pieces of at most that length."""
        if self.matrix is not None:
            longest = prod(self.matrix)
        for span in self.spans:
            starts = [*range(span.start, span.stop, longest)] or [span.start]
            edges = [*starts, span.stop]
            yield from (slice(begin, end) for begin, end in pairwise(edges))

    def within(self, begin: int, end: int) -> FlatParameterGroup:
        """Return the group in the part from `begin` to `end` of the vector."""
        cut = [slice(max(s.start, begin), min(s.stop, end)) for s in self.spans]
        spans = tuple(slice(s.start - begin, s.stop - begin) for s in cut if s.start < s.stop)
        return replace(self, spans=spans)


def parameter_groups(
    update: Update, parameters: Sequence[NamedParameter]
) -> list[FlatParameterGroup]:
    """Return the groups of a vector (P,): one of them if `update` asks for no others.

    The first of `update.groups` that matches a parameter's name is its group. What has the same
    settings is in one group here, as few and as long slices as possible.
    """
    ends = [*accumulate((each.size for each in parameters), initial=0)]
    spans = [slice(*ends) for ends in pairwise(ends)]
    settings = [_settings(update, each) for each in parameters]
    found: dict[tuple[Any, ...], list[slice]] = {}
    for setting, run in groupby(zip(settings, spans, strict=True), key=lambda each: each[0]):
        first, *others = [span for _, span in run]
        end = others[-1].stop if others else first.stop
        found.setdefault(setting, []).append(slice(first.start, end))
    return [FlatParameterGroup(tuple(spans), *setting) for setting, spans in found.items()]


def _settings(update: Update, parameter: NamedParameter) -> tuple[Any, ...]:
    """Return the fields of its group, but for the spans."""
    spared = update.no_decay is not None and parameter.is_norm_or_bias
    index = _group_of(update, parameter.name)
    decay = None if index is None else update.groups[index].weight_decay
    factor = 1.0 if index is None else update.groups[index].lr_factor
    matrix = parameter.matrix if update.is_muon else None
    return (0.0 if decay is None and spared else decay), factor, matrix


def _group_of(update: Update, name: str) -> int | None:
    matches = (
        index
        for index, group in enumerate(update.groups)
        if any(fnmatchcase(name, pattern) for pattern in group.match)
    )
    return next(matches, None)


def check_groups(
    update: Update, parameters: Sequence[NamedParameter], block: str = "update"
) -> None:
    """Refuse patterns without a parameter, and groups that earlier ones leave nothing to.

    Args:
        update: has the groups.
        parameters: those of the whole network.
        block: the settings' name, for errors: `update` or `local`.

    Raises:
        ConfigError: it names the setting, and the nearest name of a parameter.
    """
    names = [parameter.name for parameter in parameters]
    shown = [*names[:SHOWN], f"... ({len(names)} in all)"] if len(names) > SHOWN else names
    groups = {_group_of(update, name) for name in names}
    for index, group in enumerate(update.groups):
        where = f"{block}.groups[{index}]"
        for pattern in group.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise unknown_name("parameter", pattern, names, f"{where}.match", shown)
        if index not in groups:
            raise ConfigError(
                f"{where}: an earlier group has every parameter that it matches; the first match"
                " counts."
            )


def check_named(update: Update, names: Iterable[str]) -> None:
    """Refuse groups for a stage some of whose parameters have no name in the whole network.

    Raises:
        ConfigError: it says why.
    """
    if update.groups and "" in names:
        raise ConfigError(
            "update.groups: the model's `sequence` has parameters that are not in its"
            " named_parameters(), so that no pattern can match them."
        )


def whole(size: int) -> list[FlatParameterGroup]:
    """Return the one group of a vector (P,) in which all is updated alike."""
    return [FlatParameterGroup((slice(0, size),))]


def within(groups: Sequence[FlatParameterGroup], begin: int, end: int) -> list[FlatParameterGroup]:
    """Return the groups in the part from `begin` to `end` of a vector, without empty ones."""
    cut = [group.within(begin, end) for group in groups]
    return [group for group in cut if group.spans]

"""Parameter groups: slices of a flat vector (P,) with their own weight decay and learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate, groupby, pairwise
from math import prod
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from raysync.config import Update
from raysync.errors import ConfigError, unknown_name

# torch's layers with parameters; `_NormBase`: batch and instance norms
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

MATRICES: dict[type[nn.Module] | None, tuple[str, ...]] = {
    nn.Linear: ("weight",),
    _ConvNd: ("weight",),
    # the projections of queries, keys and values
    nn.MultiheadAttention: ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}

LISTED = 12  # most names that an error lists


@dataclass(frozen=True)
class NamedParameter:
    """A parameter of a network, in the order of the flat vector."""

    # its name in the whole network, as in `named_parameters()`; empty if it has none there
    name: str
    size: int  # in elements
    is_norm_or_bias: bool  # `no_decay: norm-and-bias` spares it
    matrix: tuple[int, int] | None  # (rows, columns) of a hidden layer


def parameters_of(module: nn.Module, names: Sequence[str] | None = None) -> list[NamedParameter]:
    """Describe the trainable parameters of a module.

    Args:
        names: the names of these parameters in the whole network; default: as in the module.
    """
    trainable = [pair for pair in module.named_parameters() if pair[1].requires_grad]
    # A norm or bias has at most one dimension or is called `bias` (timm's
    # param_groups_weight_decay), or belongs to a normalisation layer (Hugging Face's Trainer),
    # such as a LayerNorm over several dimensions.
    norms, embeddings = _parameter_ids(module, NORMS), _parameter_ids(module, EMBEDDINGS)
    full_names = [name for name, _ in trainable] if names is None else names
    are_norm_or_bias = [
        parameter.ndim <= 1 or name.split(".")[-1] == "bias" or id(parameter) in norms
        for name, parameter in trainable
    ]
    hidden = _hidden_matrices(module) - embeddings
    return [
        NamedParameter(
            name=name,
            size=parameter.numel(),
            is_norm_or_bias=is_norm_or_bias,
            # a convolution has a row for each output channel
            matrix=(len(parameter), parameter[0].numel()) if id(parameter) in hidden else None,
        )
        for name, (_, parameter), is_norm_or_bias in zip(
            full_names, trainable, are_norm_or_bias, strict=True
        )
    ]


def _hidden_matrices(module: nn.Module) -> set[int]:
    """Return the weights of hidden linear and convolution layers.

    Jordan's Muon steps along these. The last layer is taken to be the output layer, also where its
    weight is tied to an embedding.
    """
    weights = [
        weight
        for layer in module.modules()
        for name in MATRICES.get(_kind_of(layer), ())
        if (weight := getattr(layer, name, None)) is not None and weight.numel()
    ]
    return {id(weight) for weight in weights} - {id(weight) for weight in weights[-1:]}


def _kind_of(layer: nn.Module) -> type[nn.Module] | None:
    return next((kind for kind in MATRICES if kind is not None and isinstance(layer, kind)), None)


def _parameter_ids(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> set[int]:
    return {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, kinds)
        for parameter in layer.parameters(recurse=False)
    }


@dataclass(frozen=True)
class FlatParameterGroup:
    """The slices of a vector (P,) that are updated alike."""

    spans: tuple[slice, ...]  # in order; two of them do not touch
    weight_decay: float | None = None  # None: as in the update or its phase
    lr_factor: float = 1.0  # multiplies the update's learning rate
    # rows and columns of each of its matrices; None: all is elementwise
    matrix: tuple[int, int] | None = None

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
    """Group a vector (P,) by settings, in as few and as long slices as possible."""
    ends = [*accumulate((parameter.size for parameter in parameters), initial=0)]
    spans = [slice(*ends) for ends in pairwise(ends)]
    fields = [_group_fields(update, parameter) for parameter in parameters]
    grouped: dict[tuple[Any, ...], list[slice]] = {}
    for group, neighbours in groupby(zip(fields, spans, strict=True), key=lambda pair: pair[0]):
        joined = [span for _, span in neighbours]
        grouped.setdefault(group, []).append(slice(joined[0].start, joined[-1].stop))
    return [FlatParameterGroup(tuple(spans), *group) for group, spans in grouped.items()]


def _group_fields(update: Update, parameter: NamedParameter) -> tuple[Any, ...]:
    """Return the fields of a parameter's group, without the spans."""
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
    """Refuse patterns without a parameter, and groups whose parameters earlier ones have."""
    names = [parameter.name for parameter in parameters]
    allowed = [*names[:LISTED], f"... ({len(names)} in all)"] if len(names) > LISTED else names
    used = {_group_of(update, name) for name in names}
    for index, group in enumerate(update.groups):
        where = f"{block}.groups[{index}]"
        for pattern in group.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise unknown_name("parameter", pattern, names, f"{where}.match", allowed)
        if index not in used:
            raise ConfigError(
                f"{where}: an earlier group has every parameter that it matches; the first match"
                " counts."
            )


def check_named(update: Update, names: Iterable[str]) -> None:
    """Refuse groups for a stage with nameless parameters."""
    if update.groups and "" in names:
        raise ConfigError(
            "update.groups: the model's `sequence` has parameters that are not in its"
            " named_parameters(), so that no pattern can match them."
        )


def whole(size: int) -> list[FlatParameterGroup]:
    """Return the single group of a vector (P,) that is updated alike."""
    return [FlatParameterGroup((slice(0, size),))]


def within(groups: Sequence[FlatParameterGroup], begin: int, end: int) -> list[FlatParameterGroup]:
    """Return the groups in the part from `begin` to `end` of a vector, without empty ones."""
    cut = [group.within(begin, end) for group in groups]
    return [group for group in cut if group.spans]

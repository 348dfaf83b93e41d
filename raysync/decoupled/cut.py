"""Cuts a network into stages, between the items of its sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from raysync.errors import ConfigError, unknown_name
from raysync.training.vectors.buffers import BufferLayout, persistent_buffers

Cost = Callable[[nn.Module, Tensor], float]  # item, its input -> the cost of its passes


class Part(nn.Sequential):
    """Consecutive items of a network."""

    names: list[str]
    """The names of its trainable parameters in `named_parameters()` of the network; "" for a
    parameter that is not there."""


def cut(
    module: nn.Module,
    stages: int,
    samples: Tensor,
    balance: str = "operations",
    at: Sequence[str] = (),
    name: str = "model",
) -> list[Part]:
    """Cut a network into parts of its own items that together compute the same.

    Args:
        stages: K, the number of parts.
        samples: (N, ...): the input for measuring costs and for comparing the parts with the whole.
        balance: `operations` or `parameters`, of which the largest part has as little as possible.
        at: K - 1 names of items that begin a part; overrides `balance`.
        name: the name of the model, for errors.

    Raises:
        ConfigError: the network cannot be cut, or not so often; no item has a name of `at`; two
            parts share a parameter or buffer; or the parts together compute something else.
    """
    items = sequence_of(module, name)
    starts = (
        _starts_at(list(items), stages, at, name)
        if at
        else _balanced_starts(items, stages, samples, balance, name)
    )
    parts = [
        Part(*list(items.values())[begin:end]) for begin, end in pairwise([*starts, len(items)])
    ]
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for part in parts:
        part.names = [names.get(id(p), "") for p in part.parameters() if p.requires_grad]
    _check_sequence(module, parts, samples, name)
    for what, owners in (
        ("parameter", Counter(id(p) for part in parts for p in part.parameters())),
        ("buffer", Counter(id(b.built) for part in parts for b in persistent_buffers(part))),
    ):
        if max(owners.values(), default=0) > 1:
            raise ConfigError(f"model {name}: two of its modules share a {what}; cut it elsewhere.")
    return parts


def sequence_of(module: nn.Module, name: str = "model") -> dict[str, nn.Module]:
    """Map names to the items between which a network can be cut, in order.

    Nested nn.Sequentials are opened; a user's module lists its items in an attribute `sequence`.
    """
    if isinstance(module, nn.Sequential):
        return _opened(module)
    if hasattr(module, "sequence"):
        items: Iterable[nn.Module] = module.sequence  # type: ignore[assignment]
        return {str(index): item for index, item in enumerate(items)}
    # torchvision's ResNet, recognised without importing torchvision
    if type(module).__name__ == "ResNet" and hasattr(module, "avgpool"):
        stem = {part: getattr(module, part) for part in ("conv1", "bn1", "relu", "maxpool")}
        layers = nn.Sequential()
        for part in ("layer1", "layer2", "layer3", "layer4"):
            layers.add_module(part, getattr(module, part))
        return (
            stem
            | _opened(layers)
            | {"avgpool": module.avgpool, "flatten": nn.Flatten(), "fc": module.fc}
        )
    raise ConfigError(
        f"model {name}: it cannot be cut into stages: it is no nn.Sequential and has no attribute"
        " `sequence`, the list of its modules in the order of the forward pass."
    )


def _opened(module: nn.Sequential, path: str = "") -> dict[str, nn.Module]:
    items: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            items |= _opened(child, f"{path}{name}.")
        else:
            items[f"{path}{name}"] = child
    return items


def _starts_at(names: list[str], stages: int, at: Sequence[str], model: str) -> list[int]:
    if len(at) != stages - 1:
        raise ConfigError(
            f"model {model}: {stages} modules need {stages - 1} cuts, got {len(at)}:"
            f" {', '.join(at)}."
        )
    for item in at:
        if item not in names:
            raise unknown_name(
                "place to cut", item, names[1:], where=f"model {model}", listed=names[1:]
            )
    starts = [0, *(names.index(item) for item in at)]
    if any(later <= earlier for earlier, later in pairwise(starts)):
        raise ConfigError(
            f"model {model}: cuts must come in the order of the network, and not before its first"
            f" item ({names[0]}); got {', '.join(at)}."
        )
    return starts


def _balanced_starts(
    items: dict[str, nn.Module], stages: int, samples: Tensor, balance: str, model: str
) -> list[int]:
    """Find the starts of K parts, each with parameters, whose largest part is smallest."""
    has_parameters = [_count_parameters(item, samples) > 0 for item in items.values()]
    if stages > (most := sum(has_parameters)):
        raise ConfigError(
            f"model {model}: it can be cut into at most {most} modules with parameters, not"
            f" {stages}."
        )
    # the cost of the items before an index, and how many of them have parameters
    cost_before = [0.0, *accumulate(costs_of(items.values(), samples, COSTS[balance]))]
    learning_before = [0, *accumulate(map(int, has_parameters))]
    # number of parts -> end -> (largest part, starts)
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [])}]
    for _ in range(stages):
        ends: dict[int, tuple[float, list[int]]] = {}
        for begin, (largest, starts) in best[-1].items():
            for end in range(begin + 1, len(items) + 1):
                if learning_before[end] == learning_before[begin]:
                    continue
                candidate = (max(largest, cost_before[end] - cost_before[begin]), [*starts, begin])
                if end not in ends or candidate < ends[end]:
                    ends[end] = candidate
        best.append(ends)
    return best[-1][len(items)][1]


@torch.no_grad()
def costs_of(items: Iterable[nn.Module], samples: Tensor, cost: Cost) -> Iterable[float]:
    """Yield the cost of each item, which gets the output of the one before."""
    x = samples
    for item in items:
        training = item.training
        item.eval()
        yield cost(item, x)
        x = item(x)
        item.train(training)


def _count_parameters(item: nn.Module, _: Tensor) -> float:
    return float(sum(each.numel() for each in item.parameters() if each.requires_grad))


def _count_operations(item: nn.Module, x: Tensor) -> float:
    """Count the operations of the forward pass; the backward pass costs in proportion."""
    with FlopCounterMode(display=False) as counter:
        item(x)
    return float(counter.get_total_flops())


COSTS: dict[str, Cost] = {"parameters": _count_parameters, "operations": _count_operations}


@torch.no_grad()
def _check_sequence(
    module: nn.Module, parts: Sequence[nn.Module], samples: Tensor, name: str
) -> None:
    training = module.training
    module.eval()
    expected, x = module(samples), samples
    for part in parts:
        x = part.eval()(x)
    module.train(training)
    for part in parts:
        part.train(training)
    if x.shape != expected.shape or not torch.allclose(x, expected, rtol=1e-4, atol=1e-5):
        raise ConfigError(f"model {name}: its `sequence` computes something other than the model.")


def joined(
    vectors: Sequence[Tensor], stages: Sequence[BufferLayout], whole: BufferLayout
) -> Tensor:
    """Join the vectors (P + Q,) of the stages into the vector of the whole network."""
    pairs = list(zip(vectors, stages, strict=True))
    buffers = [buffer for vector, stage in pairs for buffer in stage.tensors(vector)]
    weights = [vector[: stage.parameters] for vector, stage in pairs]
    return torch.cat([*weights, *whole.rows(buffers)])

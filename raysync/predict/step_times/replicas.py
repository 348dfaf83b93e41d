"""Whether profiled ranks are replicas: each has the whole model, and reduces its gradients with all
others.

Ranks that share a model reduce activations in groups of their own, or only send them on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set as AbstractSet

from raysync.errors import ConfigError
from raysync.predict.step_times.collectives import Collective, Group

Moved = Mapping[Collective, float]  # collective -> the bytes that it moved; 0: unknown
# reductions with a smaller share of what a rank moves are of measures, not of gradients
LITTLE = 0.01
# what groups are called whose ranks share a model, unless it says data, too
OF_ONE_MODEL = re.compile(r"(?<![a-z])(tp|pp|tensor|pipe\w*|stages?)(?![a-z])", re.IGNORECASE)
OF_DATA = re.compile(r"(?<![a-z])(dp|data)(?![a-z])", re.IGNORECASE)
REPLICAS = "only ranks that have the whole model each, and reduce all of its gradients, can be"


def reduced(moved: Moved, groups: AbstractSet[Group]) -> float:
    """Return the bytes that are reduced in some groups; 0: none, or unknown."""
    return sum(size for one, size in moved.items() if one.reduces and one.group in groups)


def groups_of_gradients(
    steps: Mapping[str, Iterable[Moved]], world_size: int | None
) -> AbstractSet[Group]:
    """Return the groups in which gradients are reduced; none: the ranks never met.

    Args:
        steps: rank -> what it moved in each step.
        world_size: the ranks of their program; None: the traces do not say it.

    Raises:
        ConfigError: the ranks are no replicas, or one lacks a group that another has.
    """
    ranks = {rank: _summed(moved) for rank, moved in steps.items()}
    found = {rank: _of_gradients(moved) for rank, moved in ranks.items()}
    first = max(found, key=lambda rank: len(found[rank]))
    sizes = found[first]
    if not sizes:
        if (world_size or 1) > 1 or (len(ranks) > 1 and any(ranks.values())):
            raise ConfigError(
                f"{first}: no trace has a reduction of gradients, so ranks may be the stages of a"
                f" pipeline; {REPLICAS} compared. Where gradients accumulate, profile more steps."
            )
        return frozenset()
    of_gradients = {one.group: one for one in sizes}
    for rank, moved in ranks.items():
        missing = of_gradients.keys() - {one.group for one in moved if one.reduces}
        if missing:
            raise ConfigError(
                f"{rank}: its trace has no reduction in {of_gradients[min(missing)].label}, as that"
                f" of {first} has; profile all ranks alike."
            )
    if (sharded := _of_shards(sizes, world_size)) is not None:
        return {sharded.group}
    if (shared := _of_one_model(sizes, len(ranks), world_size)) is not None:
        raise ConfigError(
            f"{first}: it reduces {sizes[shared]:,.0f} bytes in {shared.label}, so ranks are parts"
            f" of one model; {REPLICAS} compared."
        )
    return of_gradients.keys()


def _summed(moved: Iterable[Moved]) -> dict[Collective, float]:
    sums: dict[Collective, float] = defaultdict(float)
    for of_step in moved:
        for collective, size in of_step.items():
            sums[collective] += size
    return sums


def _of_gradients(moved: Moved) -> dict[Collective, float]:
    """Return the reductions that are large enough, or all, if no size is known."""
    found = {one: size for one, size in moved.items() if one.reduces}
    total = sum(found.values())
    if total and total < LITTLE * sum(moved.values()):
        return {}
    return {one: size for one, size in found.items() if size >= LITTLE * total}


def _of_shards(sizes: Moved, world_size: int | None) -> Collective | None:
    """Return the reduce-scatter of hybrid FSDP; None: it is none.

    Its shards are reduced in another group, so gradients are reduced with all ranks.
    """
    if len(sizes) != 2:
        return None
    whole, shard = sorted(sizes, key=lambda collective: not collective.scatters)
    together = whole.group.ranks * shard.group.ranks
    is_shard = abs(whole.group.ranks * sizes[shard] - sizes[whole]) <= LITTLE * sizes[whole]
    is_scattered = whole.scatters and not shard.scatters
    return whole if is_scattered and is_shard and together == (world_size or together) else None


def _of_one_model(sizes: Moved, count: int, world_size: int | None) -> Collective | None:
    """Return the largest reduction that is not with all ranks."""
    # several groups have other ranks, unless each has all
    several = len({(one.group, one.name) for one in sizes}) > 1
    least = max(count, world_size or max(one.group.ranks for one in sizes)) if several else count
    found = [
        one
        for one in sizes
        if 0 < one.group.ranks < least
        or (OF_ONE_MODEL.search(one.group.about) and not OF_DATA.search(one.group.about))
    ]
    return max(found, key=lambda collective: sizes[collective], default=None)

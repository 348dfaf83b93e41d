"""From the `sweep:` block of an experiment file to the settings of each trial."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import yaml
from ray import tune

from raysync.config import Distribution, Sweep
from raysync.errors import ConfigError, unknown_name

Point = dict[str, Any]
"""Setting -> value of one trial: what YAML calls a scalar, or else its YAML text, which searchers
and tables can take. With `trial`, its number in the grid."""

NOT_VARIED = {
    "output": "records lie in the folder of the sweep",
    "name": "it is the sweep's",
    "sweep": "it is what varies",
    "switch_search": "it is `raysync switch-search` that makes it",
    "seeds": "a trial has one; vary `seed`",
    "paradigms": "a trial has one; vary `paradigm`",
}


def check_keys(sweep: Sweep, source: str) -> None:
    """Refuse what no trial can have a value of its own for.

    Raises:
        ConfigError: naming the setting and what to do.
    """
    for key in (*sweep.grid, *sweep.sample):
        if why := NOT_VARIED.get(key.partition(".")[0]):
            raise ConfigError(f"{source}: sweep: {key} cannot be varied: {why}.")
    for index, rule in enumerate(sweep.exclude):
        for key in rule:
            if key not in sweep.grid:
                raise unknown_name(
                    "setting of the grid",
                    key,
                    sweep.grid,
                    where=f"{source}: sweep.exclude[{index}]",
                )


def count(sweep: Sweep) -> int:
    """Trials, before anything is excluded."""
    if sweep.search is not None:
        return sweep.samples
    return (
        int(np.prod([len(values) for values in sweep.grid.values()], dtype=object)) * sweep.samples
    )


def points(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """Every combination of the grid that no rule excludes, each with its draws; as in the file, the
    last key fastest.

    Args:
        sweep: without a searcher.
        seed: of what is drawn; the same draws for every combination of the grid, so that they can
            be compared in pairs.
        source: the file, for errors.

    Raises:
        ConfigError: a rule excludes nothing, or everything is excluded, or a distribution cannot be
            drawn from.
    """
    draws = _draws(sweep, seed, source)
    combinations = [
        dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())
    ]
    for index, rule in enumerate(sweep.exclude):
        if not any(_meets(combination, rule) for combination in combinations):
            raise ConfigError(
                f"{source}: sweep.exclude[{index}]: no combination of the grid meets"
                f" {_shown(rule)}."
            )
    kept = [one for one in combinations if not any(_meets(one, rule) for rule in sweep.exclude)]
    if not kept:
        raise ConfigError(
            f"{source}: sweep: all {len(combinations)} combinations are excluded; nothing is left"
            " to run."
        )
    return [
        {key: plain(value) for key, value in one.items()} | draw for one in kept for draw in draws
    ]


def examples(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """Of what a searcher may ask for: each value of the grid beside the first of the others, with
    one draw.
    """
    first = {key: plain(values[0]) for key, values in sweep.grid.items()} | _draws(
        sweep, seed, source
    )[0]
    return [
        first,
        *(
            first | {key: plain(value)}
            for key, values in sweep.grid.items()
            for value in values[1:]
        ),
    ]


def _draws(sweep: Sweep, seed: int, source: str) -> list[Point]:
    domains = {key: domain(key, distribution, source) for key, distribution in sweep.sample.items()}
    random = np.random.RandomState(seed)
    return [
        {key: plain(one.sample(random_state=random)) for key, one in domains.items()}
        for _ in range(sweep.samples)
    ]


def space(sweep: Sweep, source: str) -> dict[str, Any]:
    """What a searcher of Tune chooses from; the values of the grid are choices to it."""
    choices = {
        key: tune.choice([plain(value) for value in values]) for key, values in sweep.grid.items()
    }
    return choices | {
        key: domain(key, distribution, source) for key, distribution in sweep.sample.items()
    }


def domain(key: str, distribution: Distribution, source: str) -> Any:
    """Ray Tune's of that name.

    Raises:
        ConfigError: it does not take these arguments.
    """
    try:
        made = getattr(tune, distribution.name)(*distribution.arguments)
        made.sample(random_state=np.random.RandomState(0))
    except Exception as error:  # what Tune, NumPy or Python find wrong with them
        given = f"{distribution.name}({', '.join(map(str, distribution.arguments))})"
        raise ConfigError(
            f"{source}: sweep.sample.{key}: {given} cannot be drawn from: {error}."
        ) from error
    return made


def plain(value: Any) -> Any:
    """A scalar as it is, anything else as YAML text in one line."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, list | tuple | dict):
        return _text(list(value) if isinstance(value, tuple) else value)
    return value


def override(key: str, value: Any) -> str:
    """A value of a point, as `--set` takes it."""
    return f"{key}={value if isinstance(value, str) else _text(value)}"


def _text(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _meets(combination: dict[str, Any], rule: dict[str, tuple[Any, ...]]) -> bool:
    return all(any(_is(combination[key], one) for one in wanted) for key, wanted in rule.items())


def _is(value: Any, wanted: Any) -> bool:
    return bool(value == wanted or (isinstance(value, dict) and value.get("name") == wanted))


def _shown(rule: dict[str, tuple[Any, ...]]) -> str:
    return ", ".join(_parts(rule))


def _parts(rule: dict[str, tuple[Any, ...]]) -> Iterator[str]:
    for key, wanted in rule.items():
        yield f"{key}: {' or '.join(str(plain(one)) for one in wanted)}"

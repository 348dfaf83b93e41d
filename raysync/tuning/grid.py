"""The trials of an experiment file's `sweep:` block."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from ray import tune

from raysync.config import Distribution, Sweep
from raysync.config.yaml_reading import read_yaml, write_yaml
from raysync.errors import ConfigError, unknown_name

# Setting -> value of one trial: a YAML scalar, or the value's YAML text, which searchers and tables
# can hold. `trial` is the trial's number in the grid.
Point = dict[str, Any]

# settings that all trials share -> the reason
NOT_VARIED = {
    "output": "the records of all trials are in the folder of the sweep",
    "name": "all trials have the name of the sweep",
    "sweep": "it says what is varied",
    "switch_search": "only `raysync switch-search` uses it",
    "seeds": "a trial has one; vary `seed`",
    "paradigms": "a trial has one; vary `paradigm`",
}

SEED = "seed"
TRIES = 100  # draws for each wanted one, before no others are expected
UNFOLDED = 2**30  # a width that no line reaches
# setting -> values. A combination is excluded if every setting has one of its values.
Exclusion = dict[str, tuple[Any, ...]]


def check_keys(sweep: Sweep, source: str) -> None:
    """Refuse settings that all trials share, and exclusions of settings outside the grid."""
    for key in (*sweep.grid, *sweep.sample):
        if why := NOT_VARIED.get(key.partition(".")[0]):
            raise ConfigError(f"{source}: sweep: {key} cannot be varied: {why}.")
    for index, exclusion in enumerate(sweep.exclude):
        where = f"{source}: sweep.exclude[{index}]"
        for key in exclusion:
            if key not in sweep.grid:
                raise unknown_name("setting of the grid", key, sweep.grid, where=where)


def count(sweep: Sweep) -> int:
    """Count the trials, before exclusions."""
    if sweep.search is not None:
        return sweep.samples + len(sweep.grid.get("paradigm", [0])) * (len(seeds(sweep)) - 1)
    return prod(map(len, sweep.grid.values())) * sweep.samples


def seeds(sweep: Sweep) -> list[Any]:
    """Return the seeds of a search: it uses the first one, and the best settings get all."""
    return list(sweep.grid.get(SEED, [None]))


def choices(sweep: Sweep) -> dict[str, list[Any]]:
    """Return the grid's settings that a searcher chooses: seeds are repeats, not choices."""
    return {key: list(values) for key, values in sweep.grid.items() if key != SEED}


def points(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """List every combination of the grid that is not excluded, with its draws.

    They are in the order of the file; the last key varies fastest. The draws are the same for every
    combination, so that these can be compared in pairs.

    Raises:
        ConfigError: an entry of `exclude` matches nothing, all is excluded, or a distribution
            cannot be drawn from.
    """
    drawn = draws(sweep, seed, source)
    combinations = [
        dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())
    ]
    for index, exclusion in enumerate(sweep.exclude):
        if not any(_matches(combination, exclusion) for combination in combinations):
            raise ConfigError(
                f"{source}: sweep.exclude[{index}]: no combination of the grid matches"
                f" {_exclusion_text(exclusion)}."
            )
    remaining = [
        combination
        for combination in combinations
        if not any(_matches(combination, exclusion) for exclusion in sweep.exclude)
    ]
    if not remaining:
        raise ConfigError(
            f"{source}: sweep: all {len(combinations)} combinations are excluded; nothing is left"
            " to run."
        )
    return [
        {key: plain(value) for key, value in combination.items()} | draw
        for combination in remaining
        for draw in drawn
    ]


def examples(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """List points that show each value of the grid, with the first values of other settings."""
    grid = choices(sweep)
    first = {key: plain(values[0]) for key, values in grid.items()}
    first |= draws(sweep, seed, source)[0]
    return [
        first,
        *(first | {key: plain(value)} for key, values in grid.items() for value in values[1:]),
    ]


def draws(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """Draw different settings: a repeated draw would repeat its trials.

    A small space has fewer than `samples`.
    """
    domains, random = _domains(sweep, source), np.random.RandomState(seed)
    drawn: dict[str, Point] = {}
    for _ in range(TRIES * sweep.samples):
        point = {key: plain(values.sample(random_state=random)) for key, values in domains.items()}
        drawn.setdefault(repr(point), point)
        if len(drawn) == sweep.samples:
            break
    return list(drawn.values())


def space(sweep: Sweep, source: str) -> dict[str, Any]:
    """Return the space for a searcher of Tune; the grid's values become choices."""
    chosen = {
        key: tune.choice([plain(value) for value in values])
        for key, values in choices(sweep).items()
    }
    return chosen | _domains(sweep, source)


def _domains(sweep: Sweep, source: str) -> dict[str, Any]:
    return {key: _domain(key, distribution, source) for key, distribution in sweep.sample.items()}


def _domain(key: str, distribution: Distribution, source: str) -> Any:
    """Create Ray Tune's distribution; raise `ConfigError` for arguments that it refuses."""
    try:
        created = getattr(tune, distribution.name)(*distribution.arguments)
        created.sample(random_state=np.random.RandomState(0))  # raises, too
    except Exception as error:  # Tune, NumPy or Python refuse the arguments
        call = f"{distribution.name}({', '.join(map(str, distribution.arguments))})"
        raise ConfigError(
            f"{source}: sweep.sample.{key}: {call} cannot be drawn from: {error}."
        ) from error
    return created


def plain(value: Any) -> Any:
    """Return numbers, and text that YAML reads as itself, unchanged; others as one line of YAML."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and _reads_as_itself(value):
        return value
    if value is None or isinstance(value, str | list | tuple | dict):
        return _yaml_line(list(value) if isinstance(value, tuple) else value)
    return value


def _reads_as_itself(text: str) -> bool:
    # 1e-3 does not: YAML reads it as a number unless it is quoted
    try:
        return bool(read_yaml(text, "a value") == text)
    except ConfigError:
        return False


def override(key: str, value: Any) -> str:
    return f"{key}={value if isinstance(value, str) else _yaml_line(value)}"


def _yaml_line(value: Any) -> str:
    text = write_yaml(value, width=UNFOLDED, flow=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _matches(combination: dict[str, Any], exclusion: Exclusion) -> bool:
    return all(
        any(_has_value(combination[key], value) for value in values)
        for key, values in exclusion.items()
    )


def _has_value(value: Any, expected: Any) -> bool:
    # a name alone excludes the choice with whatever parameters
    by_name = isinstance(value, dict) and isinstance(expected, str)
    return bool(value == expected or (by_name and value.get("name") == expected))


def _exclusion_text(exclusion: Exclusion) -> str:
    return ", ".join(
        f"{key}: {' or '.join(str(plain(value)) for value in values)}"
        for key, values in exclusion.items()
    )

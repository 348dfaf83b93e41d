"""Turn the `sweep:` block of an experiment file into the settings of each trial."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from ray import tune

from raysync.config import Distribution, Sweep
from raysync.config.yaml_reading import read_yaml, write_yaml
from raysync.errors import ConfigError, unknown_name

Point = dict[str, Any]
"""Setting -> value of one trial: a YAML scalar, or else the YAML text of the value, which searchers
and tables can hold. `trial` is the trial's number in the grid."""

NOT_VARIED = {
    "output": "the records of all trials are in the folder of the sweep",
    "name": "all trials have that of the sweep",
    "sweep": "it says what is varied",
    "switch_search": "only `raysync switch-search` uses it",
    "seeds": "a trial has one; vary `seed`",
    "paradigms": "a trial has one; vary `paradigm`",
}
"""Settings that all trials share -> the reason."""

UNFOLDED = 2**30
"""A width that no line reaches."""
Exclusion = dict[str, tuple[Any, ...]]
"""Setting -> values: excludes the combinations that have one of the values for every setting."""


def check_keys(sweep: Sweep, source: str) -> None:
    """Refuse settings that all trials share, and exclusions of settings that are not in the grid.

    Raises:
        ConfigError: the message names the setting and what to do.
    """
    for key in (*sweep.grid, *sweep.sample):
        if why := NOT_VARIED.get(key.partition(".")[0]):
            raise ConfigError(f"{source}: sweep: {key} cannot be varied: {why}.")
    for index, exclusion in enumerate(sweep.exclude):
        for key in exclusion:
            if key not in sweep.grid:
                raise unknown_name(
                    "setting of the grid",
                    key,
                    sweep.grid,
                    where=f"{source}: sweep.exclude[{index}]",
                )


def count(sweep: Sweep) -> int:
    """Count the trials, before anything is excluded."""
    if sweep.search is not None:
        return sweep.samples
    return (
        int(np.prod([len(values) for values in sweep.grid.values()], dtype=object)) * sweep.samples
    )


def points(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """List every combination of the grid that is not excluded, each with its draws; in the order
    of the file, the last key varies fastest.

    Args:
        sweep: a sweep without a searcher.
        seed: the seed of the draws; they are the same for every combination of the grid, so that
            these can be compared in pairs.
        source: the file, for errors.

    Raises:
        ConfigError: an entry of `exclude` excludes nothing, or everything is excluded, or a
            distribution cannot be drawn from.
    """
    draws = _draws(sweep, seed, source)
    combinations = [
        dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())
    ]
    for index, exclusion in enumerate(sweep.exclude):
        if not any(_matches(combination, exclusion) for combination in combinations):
            raise ConfigError(
                f"{source}: sweep.exclude[{index}]: no combination of the grid matches"
                f" {_text_of(exclusion)}."
            )
    kept = [
        combination
        for combination in combinations
        if not any(_matches(combination, exclusion) for exclusion in sweep.exclude)
    ]
    if not kept:
        raise ConfigError(
            f"{source}: sweep: all {len(combinations)} combinations are excluded; nothing is left"
            " to run."
        )
    return [
        {key: plain(value) for key, value in combination.items()} | draw
        for combination in kept
        for draw in draws
    ]


def examples(sweep: Sweep, seed: int, source: str) -> list[Point]:
    """List examples of what a searcher can ask for: each value of the grid beside the first of the
    others, with one draw.
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
        {key: plain(each.sample(random_state=random)) for key, each in domains.items()}
        for _ in range(sweep.samples)
    ]


def space(sweep: Sweep, source: str) -> dict[str, Any]:
    """Return the search space for a searcher of Tune; the values of the grid become choices."""
    choices = {
        key: tune.choice([plain(value) for value in values]) for key, values in sweep.grid.items()
    }
    return choices | {
        key: domain(key, distribution, source) for key, distribution in sweep.sample.items()
    }


def domain(key: str, distribution: Distribution, source: str) -> Any:
    """Create Ray Tune's distribution of that name.

    Raises:
        ConfigError: it does not accept these arguments.
    """
    try:
        domain = getattr(tune, distribution.name)(*distribution.arguments)
        domain.sample(random_state=np.random.RandomState(0))
    except Exception as error:  # Tune, NumPy or Python refuse the arguments
        call = f"{distribution.name}({', '.join(map(str, distribution.arguments))})"
        raise ConfigError(
            f"{source}: sweep.sample.{key}: {call} cannot be drawn from: {error}."
        ) from error
    return domain


def plain(value: Any) -> Any:
    """Return a number as it is, and so text that YAML reads as itself; anything else as YAML text
    in one line.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and _is_read(value):
        return value
    if value is None or isinstance(value, str | list | tuple | dict):
        return _text(list(value) if isinstance(value, tuple) else value)
    return value


def _is_read(text: str) -> bool:
    """Say whether YAML reads a text as itself: not `1e-3`, which has to be quoted."""
    try:
        return bool(read_yaml(text, "a value") == text)
    except ConfigError:
        return False


def override(key: str, value: Any) -> str:
    """Write a value of a point in the form that `--set` takes."""
    return f"{key}={value if isinstance(value, str) else _text(value)}"


def _text(value: Any) -> str:
    text = write_yaml(value, width=UNFOLDED, flow=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _matches(combination: dict[str, Any], exclusion: Exclusion) -> bool:
    return all(
        any(_is(combination[key], value) for value in values) for key, values in exclusion.items()
    )


def _is(value: Any, expected: Any) -> bool:
    return bool(value == expected or (isinstance(value, dict) and value.get("name") == expected))


def _text_of(exclusion: Exclusion) -> str:
    return ", ".join(
        f"{key}: {' or '.join(str(plain(value)) for value in values)}"
        for key, values in exclusion.items()
    )

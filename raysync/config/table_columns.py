"""Which columns of a step table have the workers, the steps and their seconds: by their titles."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysync.config.base import listed
from raysync.errors import ConfigError

MOST = {"worker": 2, "step": 1, "seconds": 1, "unit": 1}  # of `--columns`
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "milliseconds"), "ms"),
    # both signs for micro are in use
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "usecs", "micros", "microseconds"), "us"),
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
# a unit at the end of a title: `_ms`, ` (ms)`, `Ms` after a small letter
UNIT = re.compile(rf"(?:^|[\s_.\-/(\[]|(?<=[a-z\d])(?=[A-Z]))((?i:{'|'.join(UNITS)}))[)\]]?$")
# the titles that need no option, in small letters, without their unit, and with `_` for a space
WORKERS = (("worker",), ("rank",), ("host", "hostname", "node", "local_rank", "gpu"))
STEPS = ("step", "global_step", "iteration", "iter", "batch")
DURATIONS = ("seconds", "duration", "step_time", "iteration_time", "iter_time", "batch_time")
NO_RANK = re.compile(
    r"(.*[\W_])?(loss|acc|accuracy|epoch|lr|total|sum|mean|avg|average|max|min|median|std|count"
    r"|samples|tokens|size|norm|memory|mem|bytes|throughput|util|temp|power|wait|timestamp|index"
    r"|unnamed\W*\d*)(_\w\w?)?|(wall_)?time|elapsed|date|value|p\d\d+"
)
RANK = re.compile(r"(rank|worker|host|node|gpu)\W?\d+")
SLOT = re.compile(r".+-\d+")  # a worker of an experiment: `fast-1`


@dataclass(frozen=True)
class ColumnTitles:
    """What a user says of the columns, with `--columns`."""

    # the titles that name a worker, or a pattern (`*step_time`): then a column is a rank
    worker: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()

    @property
    def pattern(self) -> str | None:
        """The pattern in `worker`."""
        return next((title for title in self.worker if "*" in title), None)


@dataclass(frozen=True)
class Roles:
    """The titles of the columns by what is in them."""

    # title -> the rank whose durations it has; "": the workers of the rows have them
    durations: dict[str, str]
    unit: str
    worker: tuple[str, ...] = ()
    step: str | None = None
    epoch: str | None = None


def parse_columns(text: str) -> ColumnTitles:
    """Read `worker=host,local_rank,step=iter,seconds=took,unit=ms`.

    Raises:
        ConfigError: it is not of this form; it names `--columns`.
    """
    found: dict[str, tuple[str, ...]] = {}
    role = ""
    for part in next(csv.reader([text])) or [text]:
        before, equals, title = part.partition("=")
        role, title = (before.strip(), title.strip()) if equals else (role, part.strip())
        if role not in MOST or not title:
            raise ConfigError(f"--columns {text}: {part!r} is none of {'=, '.join(MOST)}=.")
        found[role] = (*found.get(role, ()), title)
        if len(found[role]) > MOST[role]:
            raise ConfigError(f"--columns {text}: {role} has at most {MOST[role]}.")
    said = ColumnTitles(**found)
    if said.pattern and (said.seconds or len(said.worker) > 1):
        raise ConfigError(f"--columns {text}: a pattern is the one worker=, without seconds=.")
    if not {*said.unit} <= UNITS.keys():
        raise ConfigError(f"--columns {text}: the unit must be s, ms or us.")
    return said


def option(role: str, title: str) -> str:
    """Return the option that says what is in a column, as typed in a shell."""
    text = f"{role}={title}"
    return "--columns " + shlex.quote(f'"{text}"' if "," in title else text)


def roles_of(titles: Sequence[str], said: ColumnTitles, rank: str) -> Roles:
    """Say what is in each column.

    Args:
        titles: of all columns.
        said: what is known of them.
        rank: the name of the rank in a table without workers.

    Raises:
        ValueError: the titles do not say it; it names the option that does.
    """
    for title in (*said.step, *said.seconds, *(() if said.pattern else said.worker)):
        if title not in titles:
            raise ValueError(f"it has no column {title!r} (--columns), but {listed(titles)}")
    step, epoch = next(iter(said.step), _first(titles, STEPS)), _first(titles, ("epoch",))
    worker = () if said.pattern else said.worker or _known_workers(titles)
    names = {title: _split(title)[0] for title in titles if title not in (step, epoch, *worker)}
    seconds = said.seconds or tuple(t for t, name in names.items() if _plain(name) in DURATIONS)
    ranks = [title for title, name in names.items() if RANK.fullmatch(_plain(name))]
    if said.pattern or not (seconds or said.worker or (worker and not ranks)):
        durations, worker = _ranks(names, said.pattern), ()
    elif len(seconds) != 1 or (ranks and not worker and not said.seconds):
        raise ValueError(
            "one column must have the seconds of the steps; got"
            f" {listed([*(seconds or names), *ranks])}. Call it 'seconds', or say"
            f" {option('seconds', [*seconds, *names, 'TITLE'][0])}"
        )
    elif worker and step is None:
        raise ValueError(
            f"no column has the numbers of the steps; got {listed([*names])}. Call it 'step', or"
            f" say {option('step', 'TITLE')}"
        )
    else:
        durations = {seconds[0]: "" if worker else rank}
    unit = _unit([*durations], said)
    return Roles(durations=durations, unit=unit, worker=worker, step=step, epoch=epoch)


def _ranks(columns: Mapping[str, str], pattern: str | None) -> dict[str, str]:
    """Return title -> rank of the columns that are ranks: of a pattern, or numbered, or all.

    Args:
        columns: title -> the title without its unit.
        pattern: of the titles; None: the user says none.
    """
    names = {title: name for title, name in columns.items() if not NO_RANK.fullmatch(_plain(name))}
    if pattern is not None:
        form, end = re.escape(pattern).replace(r"\*", ".*"), pattern.rpartition("*")[2]
        names = {
            title: title.removesuffix(end).rstrip(" _.-/:|([") if end else name
            for title, name in names.items()
            if re.fullmatch(form, title)
        }
    elif numbered := {title: name for title, name in names.items() if name[-1].isdecimal()}:
        names = numbered
        first, *others = names
        odd = [title for title in others if _pattern(names[title]) != _pattern(names[first])]
        if odd and not all(map(SLOT.fullmatch, names.values())):
            raise ValueError(
                f"are the columns {first!r} and {odd[0]!r} both ranks? Leave one out, or say which"
                f" titles are: {option('worker', _pattern(first))}"
            )
    if not names:
        raise ValueError(
            f"no column is a rank{f' like {pattern!r}' if pattern else ''}; got"
            f" {listed([*columns])}. Call a rank's column rank0, or say {option('worker', '*NAME')}"
            f" (a column a rank) or {option('seconds', ['TITLE', *columns][-1])} (one with seconds)"
        )
    return names


def _unit(durations: Sequence[str], said: ColumnTitles) -> str:
    units = {_split(title)[1]: title for title in durations}
    if said.unit:
        return UNITS[said.unit[0]]
    if len(units) > 1:
        raise ValueError(
            f"the columns {listed([*units.values()])} must have the same unit in their titles, or"
            f" none; or say it of all: {option('unit', 'ms')}"
        )
    return next(iter(units)) or "s"


def _split(title: str) -> tuple[str, str | None]:
    """Return a title without its unit, and the unit."""
    unit = UNIT.search(title)
    if unit is None:
        return title, None
    return title[: unit.start()].rstrip(" _.-/([") or title, UNITS[unit[1].lower()]


def _known_workers(titles: Sequence[str]) -> tuple[str, ...]:
    found = [tuple(title for title in titles if _plain(title) in names) for names in WORKERS]
    return next(filter(None, found), ())


def _first(titles: Sequence[str], names: Sequence[str]) -> str | None:
    by_name = {_plain(title): title for title in reversed(titles)}
    return next((by_name[name] for name in names if name in by_name), None)


def _plain(title: str) -> str:
    return re.sub(r"[\s_-]+", "_", title.lower())


def _pattern(title: str) -> str:
    return re.sub(r"\d+", "*", title)

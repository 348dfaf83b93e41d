"""Read YAML by the core schema of YAML 1.2, within bounds, and write it.

So `1e-3` is a number, and `yes`, `010` and `1:30` are not what YAML 1.1 makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.resolver import Resolver

from raysync.errors import ConfigError

DEEPEST = 50  # deeper values would meet Python's recursion limit in code that walks them
# the most characters that all aliases stand for: ten lines of nested ones could be gigabytes
MOST_ALIASED = 1_000_000

_TAB_INDENT = re.compile(r" *\t")
# Tag, pattern, first characters. `<<` is of YAML 1.1; version 1.2 has nothing else that merges.
_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)
_BASES = {"0o": 8, "0x": 16}
_MOST_WHOLE, _LONGEST_WHOLE = 2**63, 100


class _CoreSchema(Resolver):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own attribute


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    # Python reads no decimal of thousands of digits
    value = int(text, _BASES.get(text[:2], 10)) if len(text) < _LONGEST_WHOLE else _MOST_WHOLE
    if not -_MOST_WHOLE <= value < _MOST_WHOLE:
        line = node.start_mark.line + 1
        raise ValueError(f"line {line}: {text[:20]}... has more than 64 bits")
    return value


# the loader of libyaml is eight times as fast, and a sweep reads its file once for each trial
_LOADER: Any = type("Loader", (_CoreSchema, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})
_LOADER.add_constructor("tag:yaml.org,2002:int", _construct_int)
# the dumper quotes text that either version of YAML reads as something else
_DUMPER: Any = type("Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
for _tag, _pattern, _first in _CORE_SCHEMA:
    for _schema in (_CoreSchema, _DUMPER):
        _schema.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
        )
_RESOLVER = _CoreSchema()


def read_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML document, whose aliases must stay small.

    Raises:
        ConfigError: it names `source`: no YAML, nested too deep, a repeated key, or large aliases.
    """
    try:
        for line, problem in _problems(text):
            raise ConfigError(f"{source}: line {line}: {problem}.")
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or getattr(error, "reason", None)
        where = f" at line {mark.line + 1}" if mark else ""
        if mark and any(map(_TAB_INDENT.match, text.splitlines()[mark.line : mark.line + 1])):
            what = "it is indented by a tab; indent by spaces"
        raise ConfigError(f"{source}: not YAML{where}: {what or 'unreadable'}.") from error
    except ConfigError:
        raise
    except (ValueError, LookupError, AttributeError) as error:  # by PyYAML, for !!bool maybe
        raise ConfigError(f"{source}: a value in it cannot be read: {error}.") from error


def write_yaml(value: Any, *, width: int = 80, flow: bool = False) -> str:
    """Write plain data as YAML that `read_yaml` reads as the same value.

    Args:
        width: the columns after which a line is folded.
        flow: write it within brackets, `{name: ssp, staleness: 3}`.
    """
    text: str = yaml.dump(
        value, Dumper=_DUMPER, sort_keys=False, width=width, default_flow_style=flow
    )
    return text


@dataclass(slots=True)
class _Collection:
    """A list or a mapping whose end has not been read yet."""

    anchor: str | None
    is_mapping: bool
    items: int = 0  # keys count, too: in a mapping every other item is one
    size: int = 1  # in characters, with expanded aliases
    # key, as tag and text -> its line
    lines: dict[tuple[str, str], int] = field(default_factory=dict)


def _problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and description of the problems in a text, before its value is built.

    The parser's events cost little memory, however deep the text is nested.
    """
    enclosing = [_Collection(None, is_mapping=False)]
    sizes: dict[str, int] = {}  # anchor -> the size of its value
    aliased = 0
    for event in yaml.parse(text, Loader=_LOADER):
        assert event.start_mark is not None, "the loaders mark every event"
        line, size = event.start_mark.line + 1, 0
        match event:
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                enclosing.append(_Collection(event.anchor, is_mapping))
                if len(enclosing) > DEEPEST:
                    yield line, f"nested deeper than {DEEPEST} levels"
                continue
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                ended = enclosing.pop()
                anchor, size = ended.anchor, ended.size
            case yaml.ScalarEvent():
                anchor, size = event.anchor, 1 + len(event.value)
                if (before := _line_of_equal_key(enclosing[-1], event, line)) is not None:
                    twice = f"given twice, first in line {before}; leave out one"
                    yield line, f"the key {event.value!r} is {twice}"
            case yaml.AliasEvent():
                if any(collection.anchor == event.anchor for collection in enclosing):
                    yield line, f"the alias *{event.anchor} is inside the value that it stands for"
                anchor, size = None, sizes.get(str(event.anchor), 0)
                aliased += size
                if aliased > MOST_ALIASED:
                    stand_for = f"stand for more than {MOST_ALIASED:,} characters"
                    yield line, f"aliases (*{event.anchor}) {stand_for}"
            case _:
                continue
        enclosing[-1].items += 1
        enclosing[-1].size += size
        if anchor is not None:
            sizes[anchor] = size


def _line_of_equal_key(mapping: _Collection, event: yaml.ScalarEvent, line: int) -> int | None:
    """Return the line of an earlier equal key, if any; a text that is no key returns None."""
    if not mapping.is_mapping or mapping.items % 2:
        return None
    resolve: Any = _RESOLVER.resolve
    key = (event.tag or resolve(yaml.ScalarNode, event.value, event.implicit), event.value)
    before = mapping.lines.get(key)
    mapping.lines[key] = line
    return before

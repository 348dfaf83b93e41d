"""Write the tables of all settings into `raysync/config/REFERENCE.md`.

    python -m tests.settings_reference          write the tables
    python -m tests.settings_reference --check  exit with 1 if they are stale

Each block of an experiment file has a table: its settings with default, allowed values and meaning,
from the pydantic models. So the reference cannot contradict the program.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raysync.config.base import Named
from raysync.config.experiment import Experiment

PAGE = Path(__file__).parents[1] / "raysync" / "config" / "REFERENCE.md"
BEGIN = "<!-- reference: python -m tests.settings_reference -->\n"
END = "<!-- end of the reference -->\n"
HEAD = "| setting | default | allowed | meaning |\n| --- | --- | --- | --- |"
COLUMNS = 100
BOUNDS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} of them",
}
TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "null": "nothing",
}
NAME_WITH_PARAMETERS = "name, or `{name: ..., parameter: value}`"


def reference() -> str:
    """Return the reference as Markdown."""
    return "\n\n".join(_section(path, model) for path, model in _blocks("", Experiment)) + "\n"


def with_reference(page: str) -> str:
    """Return a page with the current tables between its two marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and, behind it, {END!r}")
    return f"{before}{begin}\n{reference()}\n{end}{after}"


def _blocks(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every block with the path of its settings, those within it behind it."""
    yield path, model
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            yield from _blocks(_path_of(path, name, inner, field), inner)


def _path_of(path: str, name: str, inner: type[BaseModel], field: FieldInfo) -> str:
    """Return how the settings of an inner block are addressed: `update.schedule`, `workers[]`."""
    place = f"{path}.{name}" if path else name
    if get_origin(field.annotation) is dict:
        return f"{place}.NAME"
    if get_origin(field.annotation) is not tuple:
        return place
    kind = inner.model_fields.get("kind")
    return f"{place}[] of kind {get_args(kind.annotation)[0]}" if kind else f"{place}[]"


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the blocks of settings in `tuple[Model, ...]`, `A | B` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if issubclass(annotation, Named) else [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _section(path: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    about = fill(_first_paragraph(model), COLUMNS)
    rows = []
    for name, field in model.model_fields.items():
        allowed = _blocks_of(path, name, field) or _allowed(schema, name)
        rows.append(f"| `{name}` | {_default(field)} | {allowed} | {_meaning(field)} |")
    return "\n".join([f"### {f'`{path}`' if path else 'The file'}\n", f"{about}\n", HEAD, *rows])


def _meaning(field: FieldInfo) -> str:
    text = field.description
    if text is None:  # a block says itself what it is
        text = "; ".join(map(_first_paragraph, _models_in(field.annotation)))
    return text.replace("|", "\\|")


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = _plain(field.get_default(call_default_factory=True))
    return "-" if value is None or value in ([], {}, "") else f"`{_flow(value)}`"


def _plain(value: Any) -> Any:
    """Return a default as an experiment file would give it: what a block does not set is left
    out.
    """
    if isinstance(value, Named):
        return {"name": value.name, **value.parameters} if value.parameters else value.name
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in sorted(value.model_fields_set)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _flow(value: Any) -> str:
    """Write a value as YAML does on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _blocks_of(path: str, name: str, field: FieldInfo) -> str:
    """Link to the sections of the blocks that a setting holds; empty if it holds none."""
    paths = [_path_of(path, name, inner, field) for inner in _models_in(field.annotation)]
    links = [f"[`{inner}`](#{anchor(f'`{inner}`')})" for inner in paths]
    forms: dict[Any, str] = {tuple: "list of ", dict: "mapping to "}
    form = forms.get(get_origin(field.annotation), "")
    return f"{form}{' or '.join(links)}" if links else ""


def anchor(heading: str) -> str:
    """Return what a link to a heading ends in, as GitHub makes it of the heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return plain.replace(" ", "-")


def _allowed(schema: Mapping[str, Any], name: str) -> str:
    return _words(schema["properties"][name], schema).replace("|", "\\|")


def _words(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Say in words what a JSON schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = root["$defs"][name]
        return NAME_WITH_PARAMETERS if inner.get("additionalProperties") else _words(inner, root)
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(_words(choice, root) for choice in choices))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    bounds = [text.format(_number(schema[key])) for key, text in BOUNDS.items() if key in schema]
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}: {_words(schema['prefixItems'][0], root)}"
        return ", ".join([f"list of: {_words(schema.get('items', {}), root)}", *bounds])
    inner = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(inner, Mapping):
        return f"mapping to: {_words(inner, root)}"
    return ", ".join([TYPES.get(schema.get("type", ""), "any value"), *bounds])


def _number(bound: float) -> str:
    return "2^63" if bound == 2**63 else f"{bound:g}"


def main(arguments: list[str]) -> int:
    """Write the reference, or check it; returns the exit status."""
    page = PAGE.read_text(encoding="utf-8")
    fresh = with_reference(page)
    if arguments not in ([], ["--check"]):
        print(f"unknown: {' '.join(arguments)}; allowed: --check, or nothing.", file=sys.stderr)
        return 2
    if fresh == page:
        return 0
    if arguments:
        print(f"{PAGE} is stale: run python -m tests.settings_reference", file=sys.stderr)
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

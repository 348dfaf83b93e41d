"""Identify the user's code of a run: modules that the experiment names, and their imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from raysync.record.trust import references_in
from raysync.users_code import is_users

GIT_S = 10.0  # timeout


def user_code(trained: Iterable[object], paradigm: Iterable[object]) -> dict[str, Any] | None:
    """Describe the user's code behind objects, or settings that name modules; None: no code."""
    of_task, of_paradigm = _files(trained), _files(paradigm)
    files = of_task | of_paradigm
    if not files:
        return None
    return {
        "sha256": _hash(files),
        "task_sha256": _hash(of_task),
        "paradigm_sha256": _hash(of_paradigm),
        "files": sorted(files),
        **_commit(list(files.values())),
    }


def _files(things: Iterable[object]) -> dict[str, Path]:
    """Return the user's source files behind objects or settings: relative name -> path."""
    found: dict[str, Path] = {}
    known, waiting = set[str](), {module for thing in things for module in _modules_of(thing)}
    while waiting:
        known |= waiting
        imported = {module.rpartition(".")[0] for module in waiting}  # the packages
        for module in waiting:
            file = _source_of(module)
            if file is not None and is_users(file):
                # the parts of the path from the folder of the topmost package
                depth = module.count(".") + 1 + (file.stem == "__init__")
                found["/".join(file.parts[-depth:])] = file
                imported.update(_imports(module, file))
        waiting = imported - known - {""}
    return found


def _modules_of(thing: object) -> Iterator[str]:
    """Yield the modules that settings name, or that define an object and its classes."""
    if isinstance(thing, Mapping):
        for name in references_in(thing):
            yield name.split(":")[-2]  # an adapter's name may stand before it
    else:
        for part in (thing, *type(thing).__mro__):
            if isinstance(module := getattr(part, "__module__", None), str):
                yield module


def _source_of(module: str) -> Path | None:
    """Return the source file of a module without importing its package."""
    if loaded := sys.modules.get(module):
        files = [Path(getattr(loaded, "__file__", None) or "")]
    else:
        stems = [Path(place, *module.split(".")) for place in sys.path]
        files = [file for stem in stems for file in (stem / "__init__.py", stem.with_suffix(".py"))]
    return next((file.resolve() for file in files if file.suffix == ".py" and file.is_file()), None)


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield possible imports of a source file: modules, and names in them."""
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    try:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (f"{base}.{alias.name}" for alias in node.names)
    except (SyntaxError, ValueError, ImportError):
        return  # nobody can import it


def _hash(files: Mapping[str, Path]) -> str | None:
    """Hash names and contents; None: no files."""
    total = sha256()
    for name, file in sorted(files.items()):
        content = file.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest() if files else None


def _commit(files: list[Path]) -> dict[str, Any]:
    """Return the files' git commit, and whether they differ; None: no git, or no one repository."""
    options = ["status", "--porcelain=v2", "--branch", "--ignored", "--", *map(str, files)]
    try:
        done = subprocess.run(
            ["git", "-C", files[0].parent, *options],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    first, *lines = done.stdout.splitlines()
    return {
        "commit": first.removeprefix("# branch.oid "),
        "dirty": not all(line.startswith("#") for line in lines),
    }

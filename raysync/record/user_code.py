"""Which code of the user's a run executes: a hash of its source files, and their commit.

The files are those of the modules that an experiment names, and of what these import, as far as it
is the user's: in the same folder or package, or below the working directory, and not installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from raysync.users_code import is_users

GIT_S = 10.0
"""How long git may take to answer."""


def user_code(
    trained: Iterable[object], paradigm: Iterable[object], folder: Path | None = None
) -> dict[str, Any] | None:
    """Describe the user's code behind a run; None: there is none, or it has no source file.

    Args:
        trained: what task, model and data are: objects, and settings in which modules are named.
        paradigm: likewise for the paradigm.
        folder: the working directory; None: the present one.
    """
    below = folder or Path.cwd()
    of_task, of_paradigm = (
        _files([name for thing in things for name in _modules_of(thing)], below)
        for things in (trained, paradigm)
    )
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


def _modules_of(thing: object) -> Iterator[str]:
    """Yield the names of modules that a setting may name (`package.module:Class`), or in which an
    object and its class are defined.
    """
    if isinstance(thing, str):
        module, colon, _ = thing.rpartition(":")
        if colon:
            yield module.rpartition(":")[2]  # behind the name of an adapter
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from _modules_of(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _modules_of(value)
    elif thing is not None:
        yield from dict.fromkeys(
            each.__module__ for each in (*type(thing).__mro__, thing) if hasattr(each, "__module__")
        )


def _files(modules: Iterable[str], folder: Path) -> dict[str, Path]:
    """Return the user's files of some modules, and of those that they import: name -> path."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    files = {module: file for module in waiting if (file := _users_source(module)) is not None}
    places = {folder.resolve()}
    places |= {file.parents[_name(each, file).count("/")] for each, file in files.items()}
    while waiting:
        module = waiting.pop()
        file = _users_source(module)
        if file is None or not any(map(file.is_relative_to, places)):
            continue
        if (name := _name(module, file)) not in found:
            found[name] = file
            waiting += _imports(module, file)
    return found


def _users_source(module: str) -> Path | None:
    file = _source_of(module)
    return file if file is not None and is_users(file) else None


def _source_of(module: str) -> Path | None:
    """Return the source file of a module, which need not be imported; nothing is imported for
    it.
    """
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        path, parent = None, ""
        for part in module.split("."):
            parent = f"{parent}.{part}".removeprefix(".")
            try:
                spec = PathFinder.find_spec(parent, path)
            except (ImportError, ValueError):
                return None
            if spec is None:
                return None
            path, file = spec.submodule_search_locations, spec.origin
    if not isinstance(file, str) or not file.endswith(".py") or not Path(file).is_file():
        return None
    return Path(file).resolve()


def _name(module: str, file: Path) -> str:
    """Return the name of a module's file, the same wherever its folder is: `package/module.py`."""
    if module == "__main__":
        return file.name
    name = module.replace(".", "/")
    return f"{name}/__init__.py" if file.stem == "__init__" else f"{name}.py"


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield the modules that a source file may import, and the packages that it is in."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    parents = module.split(".")[: None if file.stem == "__init__" else -1]
    yield from (".".join(parents[:end]) for end in range(1, len(parents) + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from _with_packages(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1) if parts[0])


def _hash(files: Mapping[str, Path]) -> str | None:
    """Return a hash over names and contents; None of no files."""
    total = sha256()
    for name, file in sorted(files.items()):
        content = file.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest() if files else None


def _commit(files: list[Path]) -> dict[str, Any]:
    """Return the commit of the repository that the files are in, and whether they differ from it;
    None where there is no git.
    """
    folder = files[0].parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    changed = _git(folder, "status", "--porcelain", "--ignored", "--", *map(str, files))
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

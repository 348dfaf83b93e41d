"""The private names of Ray that raysync uses: a Ray that moves one is named here, and nobody else
uses any.
"""

import re
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import raysync
from raysync.cluster.ray_private import PRIVATE_NAMES


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_ray_has_the_name(name):
    module, _, path = name.partition(":")
    if not path:
        assert find_spec(module) is not None
        return
    first, *rest = path.split(".")
    found = getattr(import_module(module), first)
    if rest == ["_actor_id"]:  # of every handle, not of their class
        assert "_actor_id" in found.__init__.__code__.co_varnames or hasattr(found, "_actor_id")
    else:
        reduce(getattr, rest, found)


def test_nobody_else_uses_private_names():
    package = Path(raysync.__file__).parent
    private = re.compile(r"\bray\._(?!_)|\._actor_id\b")
    users = {
        path.relative_to(package).parts[:2]
        for path in package.rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert users == {("cluster", "ray_private")}

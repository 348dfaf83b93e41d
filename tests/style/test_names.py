"""No class name and no file name means two things in raysync/."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raysync"
SEVERAL = {"__init__"}
"""Names that Python wants in each package."""


AS_ROWS = {"Column", "Estimate", "Metric", "Replayed"}
"""What is written as rows of a table, or read as one, so that its fields stand under each other."""
HOT = {"Apply", "CallRequest", "CharLM", "Release", "Step"}
"""What is made once a push, or takes a shape whole."""


def names_of_classes():
    """Name -> its places: classes anywhere, and names of types at the top of a file."""
    places = defaultdict(list)
    classes = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        classes |= own
        assigned = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][a-z]\w*", target.id)
        }
        for name in own | assigned:
            places[name].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in places.items() if name in classes}


def names_of_files():
    """Name -> its places."""
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem not in SEVERAL:
            places[path.stem].append(str(path.relative_to(PACKAGE)))
    return places


@pytest.mark.parametrize("found", [names_of_classes, names_of_files])
def test_a_name_means_one_thing(found):
    double = {name: where for name, where in found().items() if len(where) > 1}
    assert double == {}


def test_more_than_four_fields_are_named_where_an_object_is_made():
    classes = names_of_classes().keys() - AS_ROWS - HOT
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and len(node.args) > 4:
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if name in classes:
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert found == []

"""Docstrings and names say plainly what they mean, as far as a program can tell."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "raysync").rglob("*.py"))
MOST_WORDS = 20
ROUNDABOUT = re.compile(
    r"\b(that|those) of\b|\bwhat\b[^.]*\b(did|does|do) not\b|\bwhich is then\b|\bin place of what\b"
    r"|\bstands? for\b|\bSee `[\w.]+`\.?$",
    re.IGNORECASE,
)
NO_NOUNS = {"each", "mine", "kept", "shown", "asked", "made"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, also of attributes."""
    for node in ast.walk(tree):
        for inner in node.body if isinstance(node, DOCUMENTED) else []:
            match inner:
                case ast.Expr(ast.Constant(str(text))):
                    yield inner.lineno, text


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.:;?!])\s", paragraph)[0]


def assigned_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names of variables and parameters, but not those of comprehensions."""
    inside = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    for node in ast.walk(tree):
        match node:
            case ast.arg(name):
                yield node.lineno, name
            case ast.Name(name, ast.Store()) if id(node) not in inside:
                yield node.lineno, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_prose_of_a_file_is_plain(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(line, name) for line, name in assigned_names(tree) if name in NO_NOUNS]
    for line, text in docstrings(tree):
        sentence = first_sentence(text)
        if len(sentence.split()) > MOST_WORDS or ROUNDABOUT.search(sentence):
            found.append((line, sentence))
    assert not found

"""Rules of the words in the source text that a program can verify.

The glossary of ARCHITECTURE.md has the terms; CONTRIBUTING.md has the rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")
)
FRAGMENT = re.compile(
    r"(what|which|who|whose|whether|how|where|from|when|that|those|the same)\b", re.IGNORECASE
)
"""Begins a docstring that has no subject, or hides it."""
PROPERTY_START = "Whether "
"""Begins the docstring of a boolean property."""
METAPHORS = (
    *("look after", "looks after", "hands out", "hand out", "handed out", "by turns", "made anew"),
    *("makes anew", "stand still", "stands still", "stood still", "say for a while", "who waits"),
    *("leans on", "lean on", "is told of", "are told of", "the ordinary way", "ordinary path"),
)
"""Everyday words in place of a term; each has one in the glossary."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Return line and text of the docstrings that name a thing or an action."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not (is_function and text.startswith(PROPERTY_START)):
                    yield node.body[0].lineno, text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_begin_with_a_subject_or_a_verb(path: Path) -> None:
    fragments = [line for line, text in docstrings(path) if FRAGMENT.match(text)]

    assert not fragments, f"lines {fragments}: begin with a noun phrase or a verb"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path: Path) -> None:
    if path.name == Path(__file__).name:
        return
    text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text(encoding="utf-8"))
    found = [words for words in METAPHORS if re.search(rf"\b{words}\b", text)]

    assert not found, "the glossary of ARCHITECTURE.md has the terms"

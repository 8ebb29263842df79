"""Log entries are events with values, which collectors read by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kourou import logs

ROOT = Path(logs.__file__).parent
LIKE_AN_ENTRY = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+ [a-z0-9_]+=%")


def entries() -> list[tuple[str, str]]:
    """Return where each text stands that looks like an entry with values, and the text."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and LIKE_AN_ENTRY.match(node.value)
    ]


@pytest.mark.parametrize(("where", "text"), entries())
def test_an_entry_is_an_event_and_its_values(where: str, text: str) -> None:
    match = logs._TEMPLATE.fullmatch(text)
    assert match is not None, where
    names = {name for name, _ in logs._VALUE.findall(match[2])}
    assert not names & logs._TAKEN, where

"""Log entries are events with named values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kourou import logs

ROOT = Path(logs.__file__).parent
LIKE_AN_ENTRY = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+ [a-z0-9_]+=%")


def entries() -> list[tuple[str, str]]:
    """Return the location and text of each literal that looks like a log entry with values."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and LIKE_AN_ENTRY.match(node.value)
    ]


@pytest.mark.parametrize(("where", "text"), entries())
def test_log_entry_is_an_event_with_values(where: str, text: str) -> None:
    match = logs.ENTRY_TEMPLATE.fullmatch(text)
    assert match is not None, where
    names = {name for name, _ in logs.ENTRY_VALUE.findall(match[2])}
    assert not names & logs.RESERVED_NAMES, where

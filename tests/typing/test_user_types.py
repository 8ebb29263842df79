"""Type checkers accept correct programs of users and report mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent

CHECKERS = {
    "mypy": (str(BIN / "mypy"), "--strict", "--config-file=", "--no-incremental"),
    "pyright": (str(BIN / "pyright"), "--pythonpath", sys.executable),
}

pytestmark = pytest.mark.slow


def complaints(checker: str, program: str, directory: Path) -> dict[int, str]:
    """Return the lines of a program that a type checker reports, with its messages.

    The program is checked where nothing of this repository's configuration reaches it.
    """
    copy = directory / program
    copy.write_bytes((PROGRAMS / program).read_bytes())
    done = subprocess.run(
        [*CHECKERS[checker], str(copy)],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"{re.escape(program)}:(\d+)(?::\d+)?(?: -|:) error: (.*)", done.stdout)
    assert found or done.returncode == 0, done.stdout
    return {int(line): text for line, text in found}


@pytest.mark.parametrize("checker", CHECKERS)
def test_correct_program_has_the_asserted_types(checker: str, tmp_path: Path) -> None:
    assert complaints(checker, "right.py", tmp_path) == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_only_the_mistakes_are_reported(checker: str, tmp_path: Path) -> None:
    lines = (PROGRAMS / "wrong.py").read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}

    found = complaints(checker, "wrong.py", tmp_path)

    assert set(found) == wrong, found

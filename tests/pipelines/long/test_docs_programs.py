"""Tests of docs/pipelines.md: the programs of its sections run, and print what a reader expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message

Publish = Callable[[Sequence[Message]], list[str]]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE: Final = Path(__file__).parents[3] / "docs" / "pipelines.md"


def program(containing: str) -> str:
    """Return the program of the page that contains the text."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [found] = [block for block in blocks if containing in block]
    return str(found)


@pytest.mark.parametrize(
    ("containing", "printed"),
    [("throughput.run(", "'messages': 3"), ("throughput.stream(", "3 messages read, 0 late")],
)
def test_program_runs(
    containing: str,
    printed: str,
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = f"docs-{containing[11:-1]}"
    publish([Message(topic, b"x") for _ in range(3)])
    text = program(containing).replace("localhost:9876", namesrv).replace('"orders"', f'"{topic}"')
    text = text.replace('directory="', f'directory="{tmp_path}/')

    exec(compile(text, "docs/pipelines.md", "exec"), {"__name__": "__main__"})  # noqa: S102

    assert printed in capsys.readouterr().out
    assert spark.sparkContext.applicationId, "a program leaves the session open"

"""Property expressions give the results that Java recorded in golden/vectors/sql92.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import FilterEvaluationError, FilterSyntaxError
from kourou.filter.sql92 import SqlFilter

VECTORS = json.loads(
    (Path(__file__).parent.parent / "golden" / "vectors" / "sql92.json").read_text()
)
SETS: list[dict[str, str]] = VECTORS["property_sets"]
CASES: list[dict[str, Any]] = VECTORS["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["expression"]))
def test_expression_gives_the_result_of_java(case: dict[str, Any]) -> None:
    if "compile_error" in case:
        with pytest.raises(FilterSyntaxError):
            SqlFilter(case["expression"])
        return
    compiled = SqlFilter(case["expression"])
    assert compiled.text == case["text"]
    for properties, expected in zip(SETS, case["results"], strict=True):
        assert _result(compiled, properties) == expected.split(":")[0], properties
        assert compiled.matches(properties) is (expected == "TRUE")


def _result(compiled: SqlFilter, properties: dict[str, str]) -> str:
    try:
        return {True: "TRUE", False: "FALSE", None: "NULL"}[compiled.evaluate(properties)]
    except FilterEvaluationError:
        return "ERROR"

"""Public names of `kourou.spark`: each loads, on first use only, and the listing of the options."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import kourou.spark
from kourou.spark.option_table import TABLE
from kourou.spark.sessions import RECOMMENDED_CONFIG

CHEAP = """
import sys
import kourou.spark
print(sorted({"pyspark", "pyarrow", "asyncio", "kourou.client"} & set(sys.modules)))
kourou.spark.options
print("pyspark" in sys.modules)
"""
PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"


def test_importing_the_package_loads_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHEAP], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == ["[]", "False"]


def test_every_public_name_loads() -> None:
    assert dir(kourou.spark) == sorted(kourou.spark.__all__)
    for name in kourou.spark.__all__:
        assert callable(getattr(kourou.spark, name))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        getattr(kourou.spark, "absent")  # noqa: B009  # mypy knows that it is absent


def test_no_module_replaces_a_public_name_when_it_is_imported() -> None:
    modules = [module.name for module in pkgutil.iter_modules(kourou.spark.__path__)]

    assert "sessions" in modules
    assert not set(modules) & set(kourou.spark.__all__)
    for name in modules:
        importlib.import_module(f"kourou.spark.{name}")
    assert all(callable(getattr(kourou.spark, name)) for name in kourou.spark.__all__)


def test_options_are_printed_with_defaults_and_meanings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kourou.spark.options()

    printed = capsys.readouterr().out
    assert "  maxPartitions  (default: 4; reads)\n      Maximum number of tasks." in printed
    for option in TABLE:
        assert f"\n  {option.name}  (default: " in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_spark_page_lists_the_recommended_settings() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for setting, value in RECOMMENDED_CONFIG.items():
        assert f"| `{setting}` | `{value}` |" in text

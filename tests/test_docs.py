"""Tests of the documents: named files, options and commands exist, and programs are tested ones."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kourou.cli.serve import ServeConfig
from kourou.controller.config import ControllerConfig
from kourou.controller.etcd_gateway import EtcdConfig
from kourou.documented import field_descriptions
from kourou.namesrv.config import NamesrvConfig
from kourou.remoting.tls import TlsServerConfig
from kourou.settings import wire_keys
from tests import configuration_page, spark_options_page

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_readme_fits_in_150_lines() -> None:
    assert README.count("\n") <= 150


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_in_a_document_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|docs|bench|examples)/[\w./-]*\w/?)`", text))
    named |= {
        target for target in re.findall(r"\]\(([\w./-]+)\)", text) if not target.startswith("http")
    }

    assert named, "the pattern above finds what it is meant to"
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_module_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?!tests/)(?:\w+/)*\w+\.py)`", text))

    assert len(named) > 20
    assert not [p for p in sorted(named) if not (ROOT / "src" / "kourou" / p).exists()]


def test_layers_of_the_architecture_equal_the_checked_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [set(re.findall(r"\w+", layer)) for layer in layers]
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## 3. Layers")[2].split("```")[1]
    rows = re.findall(r"^(\w+(?: \| \w+)*)", table, re.MULTILINE)
    assert [set(row.split(" | ")) for row in rows] == checked


def test_each_python_program_in_the_readme_is_a_tested_example() -> None:
    examples = [p.read_text(encoding="utf-8") for p in (ROOT / "examples").glob("*.py")]
    programs = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    assert len(programs) == 3
    for program in programs:
        assert any(program in example for example in examples), program


def test_each_program_of_the_consuming_page_is_part_of_a_tested_example() -> None:
    examples = [p.read_text(encoding="utf-8") for p in (ROOT / "examples").glob("*.py")]
    page = (ROOT / "docs" / "consuming.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)

    assert programs
    for program in programs:
        assert any(program in example for example in examples), program


def shown_commands() -> list[str]:
    """Return the `kourou` command lines in the code blocks of README and docs/."""
    blocks = [
        block
        for page in (ROOT / "README.md", *PAGES)
        for block in re.findall(r"```\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    parts = (part for block in blocks for line in block.splitlines() for part in line.split(" | "))
    found = [part.removeprefix("$ ").partition("  #")[0].strip() for part in parts]
    return [command for command in found if command.startswith("kourou ")]


def test_every_command_in_the_documents_is_valid() -> None:
    commands = shown_commands()

    assert len(commands) > 15
    for command in commands:
        _, name, *words = shlex.split(command)
        found: Any = get_command(import_module(f"kourou.cli.{name}").app)
        while hasattr(found, "commands"):
            if found.invoke_without_command and words[:1] not in [[one] for one in found.commands]:
                break  # `kourou serve` is a command, and has others below it
            found = found.commands[words.pop(0)]
        found.make_context(name, words)  # an unknown option or a missing argument raises


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_linked_page_exists(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))

    assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_config_key_of_the_store_page_exists() -> None:
    text = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+[A-Z]\w+)`", text)) - {"kourouSeal"}

    assert len(named) > 4
    assert named <= wire_keys(ServeConfig).keys()


def test_options_page_equals_the_generated_one() -> None:
    written = configuration_page.PAGE.read_text(encoding="utf-8")

    assert written == configuration_page.page(), "options changed: run `make docs`, commit the page"


def test_spark_page_has_the_generated_tables() -> None:
    written = spark_options_page.PAGE.read_text(encoding="utf-8")

    assert written == spark_options_page.page(written), "options changed: run `make docs`"


CONFIGS = [
    *configuration_page.SERVER_TITLES,
    *configuration_page.CLIENT_TITLES,
    NamesrvConfig,
    ControllerConfig,
    EtcdConfig,
    TlsServerConfig,
]


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__name__)
def test_every_config_field_has_a_meaning_in_the_docstring(cls: type[Any]) -> None:
    doc = inspect.getdoc(cls) or ""
    meanings = field_descriptions(cls)

    for field in dataclasses.fields(cls):
        assert meanings.get(field.name), f"write a docstring behind {cls.__name__}.{field.name}"
        assert f"\n    {field.name}: " in doc
    assert set(re.findall(r"^    (\w+): ", doc.split("Raises:")[0], re.MULTILINE)) == {
        field.name for field in dataclasses.fields(cls)
    }


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets

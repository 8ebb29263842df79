"""A damaged store is refused with its name and the remedy, and is not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.errors import MalformedBodyError
from kourou.store.state.config_file import unseal
from kourou.testing.process import Outcome, Serving, run_command
from tests.crash.conftest import assert_in_order

LOG = "commitlog/00000000000000000000"
GARBAGE = b"\x00garbage{" * 100

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed store with three messages in one topic, and a second topic."""
    store = tmp_path_factory.mktemp("pattern") / "store"
    conf = small_segments(store.parent)
    with Serving.start(store, "--config", str(conf)) as serving:
        for command in (
            ("send", "orders", "one", "--count", "3"),
            ("topic", "create", "bills"),
            ("receive", "orders", "--group", "billing", "--from", "earliest", "--count", "3"),
        ):
            outcome = run_command(*command, "-n", serving.namesrv)
            assert outcome.code == 0, outcome.err
        assert serving.stop().code == 0
    return store


def small_segments(directory: Path) -> Path:
    """Return a config file for a log with small segments."""
    conf = directory / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1 MiB\nmaxMessageSize=64 KiB\n")
    return conf


@pytest.fixture
def store(pattern: Path, tmp_path: Path) -> Path:
    """A copy of the store to damage."""
    small_segments(tmp_path)
    copy = tmp_path / "store"
    for name, data in contents(pattern).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    return copy


def contents(root: Path) -> dict[str, bytes]:
    """Return the files' contents by name, without the counters of saves."""
    return {
        str(p.relative_to(root)): without_seal(p.read_bytes())
        for p in root.rglob("*")
        if p.is_file()
    }


def without_seal(text: bytes) -> bytes:
    try:
        return unseal(text).data
    except MalformedBodyError:
        return text


def settings_of(store: Path) -> tuple[str, str]:
    """Return the option with the config file with which the store was created."""
    return "--config", str(store.parent / "broker.conf")


def serve(store: Path) -> Outcome:
    """Run `kourou serve`, which must exit by itself."""
    ports = ("--port", "0", "--namesrv-port", "0", "--log-level", "error")
    return run_command("serve", "--store", str(store), *ports, *settings_of(store))


def overwrite(name: str, data: bytes = GARBAGE) -> Callable[[Path], None]:
    """Return a function that overwrites the beginning of a file and of its backup."""

    def damage(store: Path) -> None:
        for file in (store / name, store / f"{name}.bak"):
            if file.exists():
                with file.open("r+b") as opened:
                    opened.write(data)

    return damage


def file_in_place_of(name: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        (store / name).rename(store / "elsewhere")
        (store / name).write_text("")

    return damage


@pytest.mark.parametrize(
    ("damage", "what", "remedy"),
    [
        (overwrite("config/topics.json"), "config/topics.json.bak", "remove both"),
        (overwrite("config/consumerOffset.json"), "config/consumerOffset.json", "remove both"),
        (overwrite("config/kourou-store.json"), "config/kourou-store.json", "remove both"),
        (lambda store: (store / LOG).unlink(), f"{LOG} at byte 0", "restore the file from a copy"),
        (file_in_place_of("commitlog"), "commitlog", "choose another directory"),
        (file_in_place_of("config"), "config", "choose another directory"),
    ],
    ids=["topics", "offsets", "sizes", "no log", "no log directory", "no config directory"],
)
def test_damage_is_refused_by_name_and_nothing_is_changed(
    store: Path, damage: Callable[[Path], None], what: str, remedy: str
) -> None:
    damage(store)
    before = contents(store)

    outcome = serve(store)

    assert outcome.code == 3
    assert what in outcome.err
    assert remedy in outcome.err
    assert "Traceback" not in outcome.err
    after = contents(store)
    assert {name: after.get(name) for name in before if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_a_table_that_does_not_parse_is_replaced_by_its_backup_with_a_warning(store: Path) -> None:
    (store / "config/topics.json").write_bytes(GARBAGE)

    with Serving.start(store, *settings_of(store)) as serving:
        assert "orders" in run_command("topic", "list", "-n", serving.namesrv).out
        outcome = serving.stop()

    assert outcome.code == 0
    assert "config_file.restored" in outcome.err
    assert "config/topics.json.bak" in outcome.err
    assert_in_order(store)


def test_other_file_sizes_than_the_stores_own_change_nothing(store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "other.conf"
    conf.write_text("mappedFileSizeCommitLog=2 MiB\nmaxMessageSize=64 KiB\n")

    with Serving.start(store, "--config", str(conf)) as serving:
        assert serving.ready["segment_bytes"] == 1024 * 1024
        assert serving.stop().code == 0

    assert_in_order(store)


def test_files_of_another_size_are_refused_with_both_sizes(store: Path) -> None:
    (store / "commitlog" / "00000000000000000123").write_bytes(b"x" * 100)

    outcome = serve(store)

    assert outcome.code == 3
    assert "commitlog/00000000000000000123 does not begin at a multiple of 1048576" in outcome.err
    assert "the store was created with another file size" in outcome.err


def test_a_limit_that_conflicts_with_the_stores_sizes_names_their_source(store: Path) -> None:
    outcome = run_command("serve", "--store", str(store), "--port", "0", "--namesrv-port", "0")

    assert outcome.code == 2
    assert "max_message_size_bytes is 4194304" in outcome.err
    assert f"1048576 (the store {store} was created with this size)" in outcome.err

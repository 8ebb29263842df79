"""Real processes to be hostile to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.disk import OsDisk
from kourou.store.tools.check import check_store
from kourou.testing.process import Serving


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One process for the tests of a module, which must survive them all, and its store too.

    Peers may make it warn; an error in its log is a fault of its own.
    """
    store = tmp_path_factory.mktemp("hostile") / "store"
    with Serving.start(store) as running:
        yield running
        outcome = running.stop()
    assert outcome.code == 0
    entries = [json.loads(line) for line in outcome.err.splitlines()]
    assert [entry for entry in entries if entry["level"] != "warning"] == []
    assert_in_order(store)


def assert_in_order(store: Path) -> None:
    """Fail unless every invariant of the store holds."""
    disk = OsDisk(store)
    try:
        assert check_store(disk).findings == []
    finally:
        disk.close()

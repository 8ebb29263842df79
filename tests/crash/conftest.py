"""Fixtures with real server processes for hostile clients."""

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
    """One server process for all tests of a module; process and store must survive them.

    Its log may contain warnings, which clients can cause, but no errors.
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

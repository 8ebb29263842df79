"""The `rig` fixture: a store on a simulated disk whose files are checked after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    if rig.store.writer.read_only_reason is not None:
        rig.reopen()
    assert rig.problems() == []

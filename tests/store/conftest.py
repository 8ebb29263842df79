"""Every test of the store that uses `rig` ends with a check of the files it left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    if rig.store.read_only_reason is not None:
        rig.reopen()
    assert rig.problems() == []

"""What `kourou serve` takes from the machine where nothing is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.cli.serve import Profile, _plan
from kourou.memory import memory_bytes


@pytest.mark.parametrize("profile", Profile)
def test_a_sixteenth_of_the_memory_is_believed_to_hold_the_logs_end(
    tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"store_path": tmp_path}
    assert _plan(flags, None, profile).broker.store.believed_bytes == memory_bytes() // 16

    monkeypatch.setenv("KOUROU_BROKER_BELIEVED_BYTES", "5")
    assert _plan(flags, None, profile).broker.store.believed_bytes == 5

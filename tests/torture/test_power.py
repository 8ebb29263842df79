"""A sample of the power losses of `make torture`."""

from __future__ import annotations

import pytest

from kourou.store.sync_plan import SyncPlan
from tests.torture.figures import Size
from tests.torture.power import LOST, lose_power_in_sync_mode, run


def test_power_losses_lose_no_acknowledged_message() -> None:
    figures = run(Size(seeds=40, jobs=1))

    assert [figure for figure in figures if not figure.held] == []
    assert all(figure.value.startswith("0 in ") for figure in figures)


def test_a_store_that_does_not_sync_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncPlan, "run", lambda *_: None)

    assert any(lose_power_in_sync_mode(seed).of(LOST) for seed in range(10))

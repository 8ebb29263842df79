"""Fixtures of the proxy's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxy.proxy_rig import MODE, Mode


@pytest.fixture(params=Mode, ids=lambda mode: mode.value)
def each_mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """Run a test once with the broker in the proxy's process, and once with a broker apart."""
    token = MODE.set(request.param)
    yield request.param
    MODE.reset(token)

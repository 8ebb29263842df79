"""Fixtures for tests of the broker: recorded exchanges of the Java broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kourou.protocol.command import RemotingCommand
from tests.golden_exchanges import exchanges


@pytest.fixture(scope="session")
def golden() -> Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]:
    """Return the request and response of a recorded exchange; the response is None if oneway."""

    def read(name: str) -> tuple[RemotingCommand, RemotingCommand | None]:
        exchange = exchanges()[name]
        response = exchange.response
        return exchange.request.command, None if response is None else response.command

    return read

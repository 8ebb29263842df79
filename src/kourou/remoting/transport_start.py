"""Start of transports: ends the protocols of starts that are cancelled.

A start can be cancelled between the protocol's `connection_made` and the return of the coroutine
that starts its transport. uvloop then closes the transport without a call of `connection_lost`, so
that the protocol would seem connected forever; asyncio calls it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ends_if_cancelled(
    factory: Callable[[], asyncio.BufferedProtocol],
) -> Iterator[Callable[[], asyncio.BufferedProtocol]]:
    """Yield a factory whose protocols get `connection_lost` if the block is cancelled.

    It is called once more where the event loop calls it too: protocols must ignore the second call.
    """
    created: list[asyncio.BufferedProtocol] = []

    def create() -> asyncio.BufferedProtocol:
        protocol = factory()
        created.append(protocol)
        return protocol

    try:
        yield create
    except asyncio.CancelledError:
        for protocol in created:
            protocol.connection_lost(None)
        raise

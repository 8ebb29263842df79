"""Clients that leave leave nothing behind that only a garbage collection frees.

A full collection stops the process for a tenth of a second, and clients could cause one whenever
they like.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kourou.proxy.pb import v2
from tests.proxy.proxy_rig import GROUP, Mode, Rig, with_rig

Visit = Callable[[Rig], Awaitable[None]]

OWNERS = ("kourou.http2.", "kourou.proxy.", "kourou.remoting.", "kourou.client.", "kourou.errors")


@pytest.fixture
def saved_garbage() -> Iterator[None]:
    """Keep what the collector finds in `gc.garbage`; it runs only when it is called.

    Objects that exist already are left out: what an earlier test of this process still holds may
    become garbage at any time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


async def send(rig: Rig) -> None:
    client = await rig.producer()
    await client.send()


async def receive(rig: Rig) -> None:
    client = await rig.consumer()
    await client.send()
    (message,) = await client.receive(invisible_ms=30_000)
    await client.ack(message)


async def cancel(rig: Rig) -> None:
    client = await rig.consumer()
    for wait_s in (0.0, 0.0, 1.0):
        call = client.receiving()
        await asyncio.sleep(wait_s)
        call.cancel()


async def terminate(rig: Rig) -> None:
    client = await rig.consumer()
    asked = v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP))
    await client.grpc.call("NotifyClientTermination", asked)


async def refused(rig: Rig) -> None:
    client = await rig.connect("stranger")
    for topic, code in (("?", v2.Code.ILLEGAL_TOPIC), ("Unknown", v2.Code.TOPIC_NOT_FOUND)):
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
        assert (await client.grpc.call("QueryRoute", asked)).status.code == code


@pytest.mark.usefixtures("saved_garbage")
@pytest.mark.parametrize("visit", [send, receive, cancel, terminate, refused])
def test_departed_client_leaves_no_reference_cycle(visit: Visit) -> None:
    found: Counter[str] = Counter()

    async def test(rig: Rig) -> None:
        for _ in range(2):  # the first one fills caches
            await visit(rig)
            await asyncio.sleep(0.1)
            rig.disconnect()
            await asyncio.sleep(200)  # the proxy forgets the client
            gc.collect()
            found.clear()
            found.update(f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage)
            gc.garbage.clear()

    with_rig(test, mode=Mode.LOCAL)
    assert {name: count for name, count in found.items() if name.startswith(OWNERS)} == {}

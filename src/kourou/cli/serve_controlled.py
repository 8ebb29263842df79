"""The broker of `kourou serve`: one with a fixed role, or one whose role controllers decide."""

from __future__ import annotations

import asyncio
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.broker.server import Broker
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.cli.exits import print_stderr
from kourou.disk import OsDisk
from kourou.remoting.runtime import Runtime

_ID_S: Final = 2.0
"""Time after which the wait for a controller is shown."""


def create_broker(config: BrokerConfig, disk: OsDisk, runtime: Runtime) -> Broker | SwitchingBroker:
    """Return the broker that the options describe; nothing is opened yet."""
    if not config.controller.enable_controller_mode:
        return Broker(config, disk, runtime, KernelFlusher)
    return SwitchingBroker(config, disk, runtime, KernelFlusher)


async def obtain_id(broker: SwitchingBroker, stop: asyncio.Event) -> bool:
    """Wait until a controller has assigned an id; return False if a signal ends that."""
    waits = [asyncio.create_task(wait) for wait in (broker.obtain_id(), stop.wait())]
    done, _ = await asyncio.wait(waits, timeout=_ID_S, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        print_stderr(f"waiting for a controller to assign an id: {broker.last_failure}")
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    is_stopped = stop.is_set() and not waits[0].done()
    if not is_stopped:
        await waits[0]
    return not is_stopped

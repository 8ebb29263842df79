"""Shared by tests of listeners on real threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from kourou.client.background import BackgroundTasks
from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements, Redeliverer
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.registered_listener import RegisteredListener
from kourou.client.consuming.offsets.offset_store import RemoteOffsets
from kourou.client.consuming.pulling.delivery import ReadyMessages
from kourou.client.consuming.watching.consume_hooks import (
    ConsumeContext,
    ConsumeHooks,
    ConsumeWatch,
)
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.instance import ClientInstance
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

GROUP = "group"


class ListenerParts:
    """The parts of an unconnected push consumer that call its listener, composed as there."""

    def __init__(self, config: PushConsumerConfig, run_blocking: Offload | None = None) -> None:
        instance = ClientInstance("127.0.0.1:9876", config, None, kind="push consumer")
        instance.tasks = BackgroundTasks()
        self.hooks, self.stats = ConsumeHooks(), ConsumerStats()
        watch = ConsumeWatch(GROUP, config.consume_timeout_ms, self.hooks, self.stats)
        self.listener = RegisteredListener(GROUP, config.consume_threads, watch, run_blocking)
        self.ready = ReadyMessages()
        self.offsets = RemoteOffsets(instance, GROUP, config.request_timeout_ms)
        self.acknowledgements = Acknowledgements(instance, GROUP, config, self.offsets)
        self.redeliverer = Redeliverer(
            instance, self.acknowledgements, self.ready, config.local_retry_delay_ms
        )


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until the condition is true; fail after ten seconds."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - threads move it
            await asyncio.sleep(0.001)


class Hook:
    """Records the messages that it was called with."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def before(self, context: ConsumeContext) -> None:
        self.seen.append(context.messages[0].queue_offset)

    def after(self, context: ConsumeContext) -> None:
        assert context.outcome is not None


class Gate:
    """A listener that blocks on one message until the test opens it.

    Attributes:
        received: the offsets of the messages that it was called with.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self.received: list[int] = []
        self._reached, self._opened = threading.Event(), threading.Event()

    def listen(self, message: MessageExt) -> None:
        self.received.append(message.queue_offset)
        if message.queue_offset == self._at:
            self._reached.set()
            assert self._opened.wait(10)

    async def reached(self) -> None:
        """Wait until the listener blocks."""
        assert await asyncio.to_thread(self._reached.wait, 10)

    def open(self) -> None:
        """Let the listener return."""
        self._opened.set()

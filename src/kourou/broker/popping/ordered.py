"""Ordered pops: blocks, acks and changes by the order infos, which are on disk before an answer.

A queue whose block ends, by an ack or by the time, wakes a held pop.

Source: PopMessageProcessor.java, AckMessageProcessor.ackOrderly,
ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForOrder,
QueueLevelConsumerOrderInfoLockManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.order_info import OrderBlock, OrderedPop, OrderedQueue
from kourou.broker.popping.order_table import OrderInfoTable
from kourou.broker.popping.pop_holds import PopHolds
from kourou.broker.popping.pop_run import Popped, PopQueue, PopRun
from kourou.errors import MessageIllegalError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.info_strings import ENTRY_END, order_counts_entries
from kourou.protocol.popping.topic_names import topic_kind

_WAIT_MS_MAX: Final = 30_000
"""Longest interval between two looks for ended blocks, in case the clock is set forward."""


class OrderedPops:
    """The order infos of a broker, and the held requests that they concern.

    Attributes:
        table: the infos, and their files.
    """

    def __init__(
        self,
        context: BrokerContext,
        table: OrderInfoTable,
        offsets: ConsumerOffsets,
        holds: Sequence[PopHolds],
    ) -> None:
        """Keep `table`, commit to `offsets`, and wake requests of `holds`."""
        self.table = table
        self._clock = context.clock
        self._config = context.live_config
        self._offsets = offsets
        self._holds = holds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to wake held requests when a block ends."""
        self._set_timer()

    def close(self) -> None:
        """Wake no more requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def block(
        self, queue: PopQueue, attempt_id: str | None, invisible_ms: int = 0
    ) -> OrderBlock | None:
        """Return why a pop gets nothing from the queue; None if it is not blocked."""
        if not len(self.table.infos):
            return None
        now_ms = self._clock.now_ms()
        return self.table.infos.block(
            OrderedQueue(*queue), now_ms, attempt_id=attempt_id, invisible_ms=invisible_ms
        )

    def clear(self, queue: PopQueue) -> None:
        """End the block of a queue: its offset was reset."""
        self.table.infos.clear(OrderedQueue(*queue), self._clock.now_ms())

    def remove_topic(self, topic: str) -> None:
        """Remove the infos of a deleted topic."""
        self.table.infos.remove_topic(topic, self._clock.now_ms())

    def remove_group(self, group: str) -> None:
        """Remove the infos of a deleted group."""
        self.table.infos.remove_group(group, self._clock.now_ms())

    def add(self, run: PopRun, pop_time_ms: int) -> str:
        """Note the messages of a pop; return the text of their consumed counts.

        The group's offset stays before the first of them.
        """
        entries = [self._add(run, popped, pop_time_ms) for popped in run.popped]
        self._set_timer()
        return ENTRY_END.join(entries)

    def _add(self, run: PopRun, popped: Popped, pop_time_ms: int) -> str:
        topic, group, queue_id = popped.queue
        header = run.header
        pop = OrderedPop(popped.read.offsets, pop_time_ms, header.invisible_time, header.attempt_id)
        queue = OrderedQueue(topic, group, queue_id)
        counts = self.table.infos.add_pop(queue, pop, self._clock.now_ms())
        self._offsets.commit_popped(group, topic, queue_id, popped.offset)
        return order_counts_entries(topic_kind(topic), queue_id, counts.by_offset, counts.least)

    def ack(self, queue: PopQueue, offset: int, pop_time_ms: int) -> None:
        """Acknowledge a message; `OrderInfoTable.save` makes it durable.

        Raises:
            MessageIllegalError: the last pop of the queue did not return it.
        """
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        found = self.table.infos.ack(
            OrderedQueue(*queue), offset, pop_time_ms, committed, self._clock.now_ms()
        )
        if found.is_illegal:
            raise MessageIllegalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{offset}: the last pop "
                "of this queue did not return it",
            )
        if found.commit_offset is not None:
            self._offsets.commit_popped(group, topic, queue_id, found.commit_offset)
        if found.is_free:
            self._wake(queue)

    def change(self, queue: PopQueue, offset: int, pop_time_ms: int, invisible_ms: int) -> int:
        """Change when a message becomes visible again; return that time, in epoch milliseconds."""
        visible_at_ms = self._clock.now_ms() + invisible_ms
        self.table.infos.change(OrderedQueue(*queue), offset, pop_time_ms, visible_at_ms)
        self._set_timer()
        return visible_at_ms

    def is_before_committed(self, queue: PopQueue, offset: int) -> bool:
        """Return whether the group has committed an offset after this one."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        return committed is not None and offset < committed

    def _wake(self, queue: PopQueue) -> None:
        topic, group, queue_id = queue
        for holds in self._holds:
            holds.wake(topic, group, queue_id)

    def _set_timer(self) -> None:
        """Set the timer for the end of the next block."""
        self.close()
        end_ms = self.table.infos.next_end_ms
        if end_ms is not None:
            wait_ms = max(0, min(end_ms - self._clock.now_ms(), _WAIT_MS_MAX))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        is_waking = self._config.current.pop.enable_notify_after_pop_order_lock_release
        for topic, group, queue_id in self.table.infos.take_ended(self._clock.now_ms()):
            if is_waking:
                self._wake(PopQueue(topic, group, queue_id))
        self._set_timer()

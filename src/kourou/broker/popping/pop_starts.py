"""Start of each read of a pop: the group's offset, or the one at which a new group begins.

    initMode 0 (MIN), any retry topic   the first message
    initMode 1 (MAX)                    the first message of a young queue, by the rule of
                                        QUERY_CONSUMER_OFFSET; of another one, the last message

A new group's offset is committed at once. A pending reset of an administrator is applied first.

Source: PopMessageProcessor.getPopOffset, getInitOffset and resetPopOffset, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.consuming.young_queues import YoungQueues
from kourou.broker.context import BrokerContext
from kourou.broker.popping.buffer import MergeBuffer, PoppedQueue
from kourou.broker.popping.checkpoint import PopTimes
from kourou.broker.popping.pop_run import PopQueue
from kourou.model.topic import is_retry_topic

INIT_MIN: Final = 0


class PopStarts:
    """Offsets of the pops of one broker.

    Attributes:
        times: gives the times of pops and changes.
    """

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        buffer: MergeBuffer,
        on_reset: Callable[[PopQueue], None],
    ) -> None:
        """Read and commit `offsets`.

        Args:
            context: the broker's state and services.
            offsets: committed offsets of groups.
            buffer: the merge buffer, whose checkpoints precede the next pop.
            on_reset: called with each queue whose reset is applied.
        """
        self._config = context.live_config
        self._reader = context.store.reader
        self._young = YoungQueues(context)
        self._offsets = offsets
        self._buffer = buffer
        self._on_reset = on_reset
        self.times: Final = PopTimes()

    def is_at_end(self, queue: PopQueue) -> bool:
        """Return whether the group has committed the end of the queue, and no reset is pending."""
        if self._offsets.has_resets:
            return False
        topic, group, queue_id = queue
        end = self._reader.max_offset(topic, queue_id)
        return self._offsets.query(group, topic, queue_id) == end

    def begin(self, queue: PopQueue, init_mode: int) -> int:
        """Return the offset of the next read, and commit it if it is new."""
        topic, group, queue_id = queue
        reset_to = self._offsets.take_reset(group, topic, queue_id)
        if reset_to is not None:
            self._on_reset(queue)
            self._offsets.commit(group, topic, queue_id, reset_to)
            return reset_to
        committed = self._offsets.query(group, topic, queue_id)
        if committed is not None:
            return self._after_buffered(queue, committed)
        offset = self._init_offset(topic, queue_id, init_mode)
        self._offsets.commit(group, topic, queue_id, offset)
        return offset

    def peek(self, queue: PopQueue, init_mode: int = INIT_MIN) -> int:
        """Return the offset of the next read; commits nothing."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        if committed is None:
            return self._init_offset(topic, queue_id, init_mode)
        return self._after_buffered(queue, committed)

    def _after_buffered(self, queue: PopQueue, committed: int) -> int:
        """Return the offset after the messages in the merge buffer, which is not committed yet."""
        latest = self._buffer.latest_offset(PoppedQueue(*queue))
        return committed if latest is None else max(committed, latest)

    def _init_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        if init_mode == INIT_MIN or is_retry_topic(topic):
            return self._reader.min_offset(topic, queue_id)
        checks_memory = self._config.current.pop.init_pop_offset_by_check_msg_in_mem
        if checks_memory and self._young.contains(topic, queue_id):
            return 0
        return max(0, self._reader.max_offset(topic, queue_id) - 1)

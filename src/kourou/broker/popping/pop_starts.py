"""Start of each read of a pop: the group's offset, or the one at which a new group begins.

    initMode 0 (MIN), any retry topic   the first message
    initMode 1 (MAX)                    the first message of a young queue, by the rule of
                                        QUERY_CONSUMER_OFFSET; of another one, the last message

A new group's offset is committed at once. A pending reset of an administrator is applied first.

Source: PopMessageProcessor.getPopOffset, getInitOffset and resetPopOffset, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.consuming.young_queues import YoungQueues
from kourou.broker.context import BrokerContext
from kourou.broker.popping.buffer import MergeBuffer, PoppedQueue
from kourou.broker.popping.pop_run import PopQueue
from kourou.model.topic import is_retry_topic

INIT_MIN: Final = 0
_TIMES_KEPT: Final = 16
_NO_STARTS: Final[set[str]] = set()


class PopStarts:
    """Offsets and times of the pops of one broker."""

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
        self._starts_by_time: dict[int, set[str]] = {}

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

    def pop_time(self, now_ms: int, starts: Collection[str]) -> int:
        """Return the time of a pop: now, or some ms later.

        Java's broker joins the parts of a checkpoint's key without a separator. So no two
        checkpoints with the same time have starts that make the same text, as queue 1 at offset 11
        and queue 11 at offset 1.

        Args:
            now_ms: the time.
            starts: `start_text` of each checkpoint.
        """
        by_time = self._starts_by_time
        while not by_time.get(now_ms, _NO_STARTS).isdisjoint(starts):
            now_ms += 1
        by_time.setdefault(now_ms, set()).update(starts)
        if len(by_time) > _TIMES_KEPT:
            del by_time[next(iter(by_time))]
        return now_ms


def start_text(queue: PopQueue, offset: int) -> str:
    """Return the text of a checkpoint's start in its key, as Java's broker joins it."""
    topic, group, queue_id = queue
    return f"{topic}{group}{queue_id}{offset}"

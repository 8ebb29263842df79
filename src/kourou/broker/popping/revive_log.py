"""Checkpoints and acks as messages for the revive topic, which the timer delivers when due.

Source: PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.revive_puts import RevivePuts, revive_draft
from kourou.broker.popping.revive_templates import PlainCheckpoint, ReviveTemplates, ReviveText
from kourou.broker.timer.timer_intake import FedMessage
from kourou.broker.timer.timers import Timers
from kourou.decimals import decimal_or
from kourou.model.host import Host
from kourou.model.properties import CLUSTER, POP_LOG_END, encode_properties
from kourou.protocol.popping.revive_records import (
    CHECKPOINT_LEAD_MS,
    AckRecord,
    ack_properties,
    checkpoint_properties,
    encode_ack,
    encode_checkpoint,
)
from kourou.protocol.popping.topic_names import revive_topic
from kourou.protocol.record.encode import RecordDraft
from kourou.store.message_store import AppendedRecord

REVIVE_PREFIX: Final = revive_topic("")
"""Prefix of the revive topics of all clusters."""

_LOCAL: Final = ("127.0.0.1", 0)


class ReviveLog:
    """Builds the messages for the revive topic of one broker.

    Attributes:
        topic: the revive topic.
        puts: stores what `checkpoint_text` and `ack_text` return.
    """

    def __init__(self, context: BrokerContext, timers: Timers) -> None:
        config = context.config
        self.topic: Final = revive_topic(config.cluster_name)
        self._config = context.live_config
        self._topics = context.topics
        self._placement = timers.placement(context.random)
        self._host: Host = context.store_host or _LOCAL
        self._templates = ReviveTemplates(self.topic)
        self._timers = timers
        self.puts: Final = RevivePuts(context, self._host, self._on_stored)
        self._counter = context.random.randrange(1 << 16)

    def _on_stored(self, records: Sequence[AppendedRecord], texts: Sequence[ReviveText]) -> None:
        """Tell the timer of records, which then need not be read."""
        self._timers.on_own_stored(
            self.topic,
            [
                FedMessage(
                    record.queue_offset,
                    record.physical_offset,
                    record.size,
                    record.store_at_ms,
                    text.due_at_ms,
                )
                for record, text in zip(records, texts, strict=True)
            ],
        )

    @property
    def queue_count(self) -> int:
        """The number of queues of the revive topic."""
        topic = self._topics.get(self.topic)
        queues = 0 if topic is None else topic.write_queue_nums
        return max(queues, self._config.current.pop.revive_queue_num)

    def next_queue(self) -> int:
        """Return the queue for the checkpoints of the next pop; all queues follow each other."""
        self._counter += 1
        return self._counter % self._config.current.pop.revive_queue_num

    def is_due_later(self, now_ms: int, invisible_ms: int) -> bool:
        """Return whether a checkpoint of a pop at this time waits in the timer for certain.

        If so, the timer expects it.
        """
        return self._placement.try_place(now_ms + invisible_ms - CHECKPOINT_LEAD_MS, now_ms)

    def plain_checkpoint(
        self, queue: tuple[str, str, int, str], queue_id: int, values: PlainCheckpoint
    ) -> ReviveText:
        """Return the checkpoint of a pop for which `is_due_later` is true."""
        return self._templates.checkpoint(queue, queue_id, values)

    def checkpoint_text(
        self,
        queue: tuple[str, str, int, str],
        queue_id: int,
        values: PlainCheckpoint,
        now_ms: int,
    ) -> ReviveText | None:
        """Return a checkpoint for `puts`: the same as `checkpoint_draft`, at a fifth of its cost.

        None if only `checkpoint_draft` can decide where it is stored.

        Args:
            queue: topic, group and queue id of the messages, and the broker's name.
            queue_id: its revive queue.
            values: of the checkpoint, of which nothing is acknowledged.
            now_ms: the time.
        """
        due_at_ms = values.pop_time_ms + values.invisible_ms - CHECKPOINT_LEAD_MS
        if not self._placement.try_place(due_at_ms, now_ms):
            return None
        return self._templates.checkpoint(queue, queue_id, values)

    def ack_text(
        self,
        key: CheckpointKey,
        queue_id: int,
        offsets: Sequence[int],
        revive_at_ms: int,
        now_ms: int,
    ) -> ReviveText | None:
        """Return an ack for `puts`; None if only `ack_draft` can decide where it is stored."""
        if not self._placement.try_place(revive_at_ms, now_ms):
            return None
        return self._templates.ack(key, queue_id, offsets, revive_at_ms)

    def checkpoint_draft(
        self,
        checkpoint: PopCheckpoint,
        queue_id: int,
        now_ms: int,
        next_offset: int | None = None,
    ) -> RecordDraft:
        """Return the message of a checkpoint; due a second before its messages are visible again.

        Args:
            checkpoint: the checkpoint.
            queue_id: its revive queue.
            now_ms: the time.
            next_offset: the offset that the group may commit when it is stored; None if messages
                before it may be in checkpoints that are not stored.

        Raises:
            MessageIllegalError: the timer cannot hold it for so long.
            RemoteSystemError: the timer wheel is off, or too many messages are due in that second.
        """
        record = checkpoint.record()
        properties = checkpoint_properties(record)
        if checkpoint.log_end is not None:
            text = str(checkpoint.log_end)
            properties[POP_LOG_END] = text if next_offset is None else f"{text} {next_offset}"
        if checkpoint.is_foreign:
            properties[CLUSTER] = self._config.current.cluster_name  # see `is_relayed`
        return self._draft(encode_checkpoint(record), properties, queue_id, now_ms)

    def ack_draft(
        self, record: AckRecord, queue_id: int, revive_at_ms: int, now_ms: int
    ) -> RecordDraft:
        """Return the message of an ack, due when the messages of its checkpoint become visible.

        Raises as `checkpoint_draft`.
        """
        properties = ack_properties(record, revive_at_ms)
        return self._draft(encode_ack(record), properties, queue_id, now_ms)

    def _draft(
        self, body: bytes, properties: dict[str, str], queue_id: int, now_ms: int
    ) -> RecordDraft:
        placed = self._placement.place(self.topic, queue_id, properties, now_ms)
        place = (placed.topic.encode(), placed.queue_id)
        return revive_draft(place, body, encode_properties(properties), self._host, now_ms)


def log_end_of(properties: Mapping[str, str]) -> int | None:
    """Return the end of the log at the pop of a checkpoint; None if the record does not tell it."""
    return decimal_or(properties.get(POP_LOG_END, "").partition(" ")[0], None)


def next_offset_of(properties: Mapping[str, str]) -> int | None:
    """Return the offset that the group of a checkpoint may commit; None if it does not tell."""
    return decimal_or(properties.get(POP_LOG_END, "").partition(" ")[2], None)

"""A broker that delivers delayed messages, and access to the delivered ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kourou.broker.delays.delay_offsets import FILE_NAME, parse_delay_offsets
from kourou.model.message import MessageExt
from kourou.protocol.record.decode import decode_message
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.disk import SimDisk


def run(
    test: Callable[[BrokerParts], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    later_ms: int = 0,
    **options: object,
) -> SimDisk:
    """Run `test` by `run_with_parts` with a broker that delivers delayed messages."""
    config = small_config(**options)
    return run_with_parts(test, disk, config=config, later_ms=later_ms, is_delivering=True)


def messages(parts: BrokerParts, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
    """Return the messages delivered to the queue."""
    found = []
    for queue_offset in range(parts.store.reader.max_offset(topic, queue_id)):
        entry = parts.store.reader.entry(topic, queue_id, queue_offset)
        assert entry is not None
        record = parts.store.reader.read_record(entry.physical_offset)
        assert record is not None
        found.append(decode_message(record))
    return found


def bodies(parts: BrokerParts, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in messages(parts, topic, queue_id)]


def saved_offsets(disk: SimDisk) -> dict[int, int]:
    return parse_delay_offsets(disk.read(FILE_NAME, 0, disk.size(FILE_NAME)))[1]

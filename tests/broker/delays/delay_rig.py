"""A broker that delivers delayed messages, and access to the delivered ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kourou.broker.delays.delay import FILE_NAME, parse_delay_offsets
from kourou.model.message import MessageExt
from kourou.protocol.record.decode import decode_message
from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config


def run(
    test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    later_ms: int = 0,
    **options: object,
) -> SimDisk:
    """Run `test` by `run_with_broker` with a broker that delivers delayed messages."""
    config = small_config(**options)
    return run_with_broker(test, disk, config=config, later_ms=later_ms, is_delivering=True)


def messages(broker: SimulatedBroker, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
    """Return the messages delivered to the queue."""
    found = []
    for queue_offset in range(broker.store.reader.max_offset(topic, queue_id)):
        entry = broker.store.reader.entry(topic, queue_id, queue_offset)
        assert entry is not None
        record = broker.store.reader.read_record(entry.physical_offset)
        assert record is not None
        found.append(decode_message(record))
    return found


def bodies(broker: SimulatedBroker, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in messages(broker, topic, queue_id)]


def saved_offsets(disk: SimDisk) -> dict[int, int]:
    return parse_delay_offsets(disk.read(FILE_NAME, 0, disk.size(FILE_NAME)))[1]

"""A broker that delivers scheduled messages, and helpers to send some."""

from __future__ import annotations

from dataclasses import replace

from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.simulated_broker import SimulatedBroker


def timer_draft(
    broker: SimulatedBroker,
    body: bytes,
    due_at_ms: int,
    *,
    unique_id: str = "",
    topic: str = "T",
    queue_id: int = 0,
    recalls: str = "",
) -> RecordDraft:
    """Return the record draft of a scheduled message, as a send would store it now."""
    draft = broker.draft(body, topic=topic, queue_id=queue_id)
    properties = decode_properties(draft.properties)
    properties[names.TIMER_DELIVER_MS] = str(due_at_ms)
    properties[names.UNIQ_KEY] = unique_id or f"id-{body.decode()}"
    if recalls:
        properties[names.TIMER_DEL_UNIQKEY] = recalls
    placed = broker.timers.placement(broker.runtime.random).place(
        topic, queue_id, properties, broker.clock.now_ms()
    )
    return replace(
        draft,
        topic=placed.topic.encode(),
        queue_id=placed.queue_id,
        properties=encode_properties(properties),
    )


async def send(broker: SimulatedBroker, *drafts: RecordDraft) -> None:
    """Store messages and wait until they are acknowledged."""
    await broker.store_messages(drafts)


async def send_at(broker: SimulatedBroker, body: bytes, due_at_ms: int, **properties: str) -> None:
    """Store a scheduled message for queue 0 of topic T."""
    await send(broker, timer_draft(broker, body, due_at_ms, **properties))  # type: ignore[arg-type]

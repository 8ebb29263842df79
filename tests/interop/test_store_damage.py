"""Test that a Java consumer stops at a damaged message until damaged messages are skipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kourou import AdminClient, Message, Producer
from kourou.testing.process import Serving
from tests.interop.clients import Client

TOPIC, COUNT, DAMAGED = "Damaged", 12, 6


async def _send(namesrv_addr: str) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with Producer("damaging", namesrv_addr) as producer:
        for number in range(COUNT):
            await producer.send(
                Message(
                    TOPIC,
                    b"body-%02d-of-many" % number,
                    keys=[f"key-{number}"],
                    properties={"number": str(number)},
                )
            )


async def _skip(serving: Serving) -> None:
    async with AdminClient(serving.namesrv) as admin:
        await admin.update_broker_config(serving.broker, {"skipDamagedRecords": "true"})


def test_java_consumer_stops_at_damage_and_continues_when_it_is_skipped(
    java_client: Client, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with Serving.start(store) as serving:
        asyncio.run(_send(serving.namesrv))
        assert serving.stop().code == 0
    (segment,) = (store / "commitlog").iterdir()
    with segment.open("r+b") as file:
        at = file.read(1 << 20).index(b"body-%02d" % DAMAGED)
        file.seek(at)
        file.write(b"BODY")

    def consume(namesrv_addr: str, count: int, seconds: int) -> tuple[list[str], bool]:
        words = ("assign", namesrv_addr, "java-damaged", TOPIC, count, seconds)
        lines = java_client.run(*words)
        received = [line[1] for line in lines if line[0] == "got"]
        return received, ["done", "true"] in lines

    keys = [f"key-{number}" for number in range(COUNT)]
    with Serving.start(store) as serving:
        received, is_done = consume(serving.namesrv, COUNT, 5)
        assert (received, is_done) == (keys[:DAMAGED], False), "never beyond it, nothing of it"
        asyncio.run(_skip(serving))
        received, is_done = consume(serving.namesrv, COUNT - 1, 60)
        assert (received, is_done) == (keys[:DAMAGED] + keys[DAMAGED + 1 :], True)
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    assert "record.damaged" in outcome.err

"""Test of stores that change hands while popped messages are invisible.

After `kill -9` the offsets in the store are some seconds old. Kourou finds in the log what a killed
broker has popped since; Java pops it again.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kourou import Message, PoppedMessage, Producer, SimpleConsumer
from kourou.testing.process import Serving, run_command
from tests.interop.ledger import make_topics
from tests.interop.peer import start_java

TOPIC, GROUP = "Popped", "popping"
INVISIBLE_MS = 12_000
PATIENCE_S = 120


async def _take(
    consumer: SimpleConsumer, count: int, invisible_ms: int = INVISIBLE_MS
) -> list[PoppedMessage]:
    taken: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await consumer.receive(count - len(taken), invisible_ms=invisible_ms)
    return taken


async def pop_some(namesrv_addr: str) -> None:
    """Send ten messages, pop them, and acknowledge four, alone and together."""
    await make_topics(namesrv_addr, TOPIC, queues=1)
    async with Producer("sending", namesrv_addr) as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, str(number).encode()), timeout_ms=15_000)
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        taken = await _take(consumer, 10)
        by_body = {message.body: message for message in taken}
        assert sorted(by_body) == [b"%d" % number for number in range(10)]
        await consumer.ack(by_body[b"0"])
        await consumer.ack_all([by_body[b"1"], by_body[b"2"], by_body[b"7"]])


async def take_rest(namesrv_addr: str) -> None:
    """Pop the messages that were not acknowledged, and no others."""
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        taken = await _take(consumer, 6, 60_000)
        assert sorted(message.body for message in taken) == [b"3", b"4", b"5", b"6", b"8", b"9"]
        assert {message.reconsume_times for message in taken} == {1}
        await consumer.ack_all(taken)
        assert await consumer.receive(wait_ms=3_000) == []


def test_java_revives_what_was_popped_here(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Serving.start(store, "--no-console") as serving:
        asyncio.run(pop_some(serving.namesrv))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err

    java = start_java(jars, tmp_path / "java", store=store)
    try:
        asyncio.run(take_rest(java.namesrv_addr))
    finally:
        java.stop()


def test_what_java_popped_is_revived_here(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    java = start_java(jars, tmp_path / "java", store=store)
    try:
        asyncio.run(pop_some(java.namesrv_addr))
    finally:
        java.stop()

    with Serving.start(store, "--no-console") as serving:
        asyncio.run(take_rest(serving.namesrv))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err


COUNT = 40
SAVE_OPTIONS = "flushConsumerOffsetInterval=20000\n"
"""Time enough for what the offsets on the disk must lack. Java saves first after ten seconds."""
SHORT_MS, LONG_MS, EARLY_MS, END_MS = 6_000, 30_000, 60_000, 180_000
"""Invisible times: of messages that are revived before the kill, of others, and of those that are
popped before the offsets are saved."""
_IDLE_MS = 12_000
"""Time without messages after which no further ones are expected."""


@dataclass
class Pops:
    """Bodies of messages by what was done with them on the broker that is killed.

    Attributes:
        saved: acknowledged before the offsets were saved.
        acked: acknowledged since.
        popped: popped since the offsets were saved.
        in_hand: not settled: their receipts must still be valid.
    """

    saved: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    popped: set[bytes] = field(default_factory=set)
    in_hand: list[PoppedMessage] = field(default_factory=list)

    @property
    def unsettled(self) -> set[bytes]:
        """The messages that must come."""
        every = {b"%02d" % number for number in range(COUNT)}
        return every - self.saved - self.acked - bodies(self.in_hand)


def saved_offset(store: Path, topic: str = TOPIC) -> int:
    """Return the group's offset in `consumerOffset.json`; 0 if it has none."""
    path = store / "config" / "consumerOffset.json"
    if not path.exists():
        return 0
    text = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', path.read_text())
    table = json.loads(text)["offsetTable"]
    return int(table.get(f"{topic}@{GROUP}", {}).get("0", 0))


def until_saved(store: Path, offset: int) -> None:
    """Wait until the group's offset is on the disk."""
    deadline = time.monotonic() + PATIENCE_S  # noqa: TID251 - a real process has real time
    while saved_offset(store) < offset:
        assert time.monotonic() < deadline, f"{saved_offset(store)} is saved"  # noqa: TID251
        time.sleep(0.05)  # noqa: TID251


def bodies(messages: Iterable[PoppedMessage]) -> set[bytes]:
    return {message.body for message in messages}


async def pop_before_save(namesrv_addr: str, pops: Pops) -> None:
    """Send all messages, pop eight, and acknowledge four."""
    await make_topics(namesrv_addr, TOPIC, queues=1)
    async with Producer("sending", namesrv_addr) as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%02d" % number), timeout_ms=15_000)
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        taken = await _take(consumer, 8, EARLY_MS)
        await consumer.ack_all(taken[:4])
        pops.saved = bodies(taken[:4])
        pops.in_hand = taken[6:]


async def pop_after_save(namesrv_addr: str, pops: Pops) -> None:
    """Pop more: acknowledge some alone, together, changed before, and after their revival."""
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        short = await _take(consumer, 4, SHORT_MS)
        taken = await _take(consumer, 12, LONG_MS)
        assert not bodies(short) & bodies(taken)
        await consumer.ack(taken[0])
        await consumer.ack_all(taken[1:4])
        for message in taken[4:6]:
            await consumer.change_invisible(message, LONG_MS)
        await consumer.ack(taken[4])
        pops.popped = bodies([*short, *taken])
        acked = [*taken[:5]]
        revived: list[PoppedMessage] = []
        async with asyncio.timeout(PATIENCE_S):
            while not bodies(short) <= bodies(revived):
                again = await consumer.receive(1, invisible_ms=LONG_MS)
                revived += [one for one in again if one.reconsume_times]
                for one in again:
                    if not one.reconsume_times:
                        pops.popped.add(one.body)
                        await consumer.ack(one)
                        acked.append(one)
        await consumer.ack_all(revived[:2])
        pops.acked = bodies([*acked, *revived[:2]])
        pops.in_hand += taken[6:8]


async def take_all(namesrv_addr: str, pops: Pops) -> Counter[bytes]:
    """Settle the messages in hand, then consume all; return how often each message came."""
    counts: Counter[bytes] = Counter()
    expected = pops.unsettled
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        for message in pops.in_hand:
            await consumer.ack(message)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                taken = await consumer.receive(invisible_ms=END_MS, wait_ms=_IDLE_MS)
                counts.update(message.body for message in taken)
                await consumer.ack_all(taken)
                if not taken and expected <= set(counts):
                    return counts


def test_what_a_killed_java_broker_popped_comes_back_once_if_it_is_not_acknowledged(
    jars: str, tmp_path: Path
) -> None:
    store, conf, pops = tmp_path / "store", tmp_path / "broker.conf", Pops()
    java = start_java(jars, tmp_path / "java", store=store, options=SAVE_OPTIONS)
    try:
        asyncio.run(pop_before_save(java.namesrv_addr, pops))
        until_saved(store, 8)
        asyncio.run(pop_after_save(java.namesrv_addr, pops))
        java.kill()
    finally:
        java.stop()
    assert saved_offset(store) == 8, "the broker saved its offsets too early"

    conf.write_text(SAVE_OPTIONS)
    with Serving.start(store, "--config", str(conf), "--no-console") as serving:
        counts = asyncio.run(take_all(serving.namesrv, pops))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    assert counts == Counter(pops.unsettled)


def test_nothing_that_a_killed_java_broker_had_buffered_is_lost(jars: str, tmp_path: Path) -> None:
    store, conf, pops = tmp_path / "store", tmp_path / "broker.conf", Pops()
    options = f"{SAVE_OPTIONS}enablePopBufferMerge=true\n"
    java = start_java(jars, tmp_path / "java", store=store, options=options)
    try:
        asyncio.run(pop_before_save(java.namesrv_addr, pops))
        until_saved(store, 8)
        asyncio.run(pop_after_save(java.namesrv_addr, pops))
        java.kill()
    finally:
        java.stop()

    conf.write_text(options)
    with Serving.start(store, "--config", str(conf), "--no-console") as serving:
        counts = asyncio.run(take_all(serving.namesrv, pops))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    # Acks were in memory, so that what was popped since the offsets were saved may come again.
    assert set(counts) >= pops.unsettled
    assert set(counts) <= pops.unsettled | pops.popped
    assert max(counts.values()) <= 2, counts


def test_java_loses_nothing_of_a_killed_kourou_and_repeats_only_what_was_not_saved(
    jars: str, tmp_path: Path
) -> None:
    store, conf, pops = tmp_path / "store", tmp_path / "broker.conf", Pops()
    conf.write_text(SAVE_OPTIONS)
    with Serving.start(store, "--config", str(conf), "--no-console") as serving:
        asyncio.run(pop_before_save(serving.namesrv, pops))
        until_saved(store, 8)
        asyncio.run(pop_after_save(serving.namesrv, pops))
        serving.process.kill()
        serving.stop()
    assert saved_offset(store) == 8, "the broker saved its offsets too early"

    java = start_java(jars, tmp_path / "java", store=store, options=SAVE_OPTIONS)
    try:
        counts = asyncio.run(take_all(java.namesrv_addr, pops))
    finally:
        java.stop()
    assert set(counts) >= pops.unsettled
    repeated = set(counts) - pops.unsettled | {body for body in counts if counts[body] > 1}
    assert repeated <= pops.popped
    # Both the message and its revived copy: from the saved offset, and from its checkpoint.
    assert max(counts.values()) <= 4, counts

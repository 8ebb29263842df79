"""Broadcasting: every member gets every message, with offsets in a local file."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.offsets.local_offsets import LocalOffsets
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.disk import OsDisk
from kourou.errors import StoreLockedError, UsageError
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.offsets import decode_reset_offsets
from kourou.remoting.runtime import Runtime
from kourou.store.state.config_file import unseal
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from kourou.testing.runtime import call_directly

BODIES = [b"%d" % number for number in range(12)]
NAME = "127.0.0.1@one/consumers/offsets.json"


def member(
    w: Recording,
    name: str | None,
    disk: SimDisk,
    received: list[bytes],
    **options: Any,
) -> PushConsumer:
    config = PushConsumerConfig(
        message_model=MessageModel.BROADCASTING,
        instance_name=name,
        client_ip="127.0.0.1",
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        **options,
    )
    consumer = w.cluster.push_consumer("consumers", config, disk)
    consumer.subscribe(TOPIC)

    async def listen(message: MessageExt) -> None:
        received.append(message.body)
        if message.body == b"bad":
            raise ValueError("never")

    consumer.listen(listen)
    return consumer


def test_every_member_gets_every_message_once() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            one: list[bytes] = []
            two: list[bytes] = []
            disk = SimDisk(1)
            async with member(w, "one", disk, one) as first, member(w, "two", disk, two):
                assert len(first.queues) == 2, "all queues of the topic, and no retry topic"
                await w.send(*BODIES)
                await w.until(lambda: len(one) == len(two) == len(BODIES))
            assert Counter(one) == Counter(two) == Counter(BODIES)
            assert await w.committed() == 0, "brokers store no offsets of it"

            one.clear()
            async with member(w, "one", disk, one):
                await w.send(b"new")
                await w.until(lambda: one == [b"new"])

    run_virtual(main())


def test_the_offset_file_has_java_s_format() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            disk = SimDisk(1)
            received: list[bytes] = []
            async with member(w, "one", disk, received):
                await w.send(*BODIES)
                await w.until(lambda: len(received) == len(BODIES))
            text = unseal(disk.read(NAME, 0, disk.size(NAME))).data.decode()
            first, second = (
                f'{{"brokerName":"broker-0","queueId":{number},"topic":"T"}}' for number in (0, 1)
            )
            counts = decode_reset_offsets(text.encode())
            assert sum(counts.values()) == len(BODIES)
            at = [counts[MessageQueue(TOPIC, "broker-0", number)] for number in (0, 1)]
            assert text == (
                f'{{\n\t"offsetTable":{{\n\t\t{first}:{at[0]},\n\t\t{second}:{at[1]}\n\t}}\n}}'
            )
            assert disk.exists(f"{NAME}.bak")

    run_virtual(main())


def test_a_crash_repeats_only_messages_not_saved_yet() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            disk = SimDisk(1)
            received: list[bytes] = []
            consumer = member(w, "one", disk, received)
            await consumer.start()
            await w.send(*BODIES[:6])
            await asyncio.sleep(5.5)
            await w.send(*BODIES[6:])
            await w.until(lambda: len(received) == len(BODIES))
            consumer.abort()
            disk.crash()

            received.clear()
            async with member(w, "one", disk, received):
                await asyncio.sleep(2)
            assert received == BODIES[6:]

    run_virtual(main())


def test_failed_messages_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            received: list[bytes] = []
            disk = SimDisk(1)
            async with member(w, "one", disk, received):
                await w.send(b"bad", b"good")
                await asyncio.sleep(120)
            assert received == [b"bad", b"good"]
            assert any("message.dropped" in record.msg for record in caplog.records)
            offsets = LocalOffsets(disk, "127.0.0.1@one", "consumers", call_directly)
            await offsets.open()
            assert (await offsets.fetch(MessageQueue(TOPIC, "broker-0", 0))).offset == 2
            offsets.close()

    run_virtual(main())


def test_a_second_process_with_the_same_client_id_is_refused() -> None:
    async def main() -> None:
        disk = SimDisk(1)
        first = LocalOffsets(disk, "id", "g", call_directly)
        await first.open()
        second = LocalOffsets(disk, "id", "g", call_directly)
        with pytest.raises(UsageError, match="instance_name"):
            await second.open()
        first.close()
        await second.open()
        second.close()

    run_virtual(main())


def test_an_unreadable_offset_file_is_an_error_with_its_path() -> None:
    async def main() -> None:
        disk = SimDisk(1)
        disk.make_directory("id/g")
        disk.write("id/g/offsets.json", 0, [b"nonsense"])
        with pytest.raises(UsageError, match=r"offsets\.json"):
            await LocalOffsets(disk, "id", "g", call_directly).open()

    run_virtual(main())


def test_the_client_id_is_the_same_after_a_restart() -> None:
    async def main() -> None:
        async with recording() as w:
            ids = {member(w, None, SimDisk(1), []).client_id for _ in range(2)}
            assert ids == {"127.0.0.1@DEFAULT"}

    run_virtual(main())


def test_queues_released_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = Runtime.system()  # threads, as in production: saves may overlap
        queues = [MessageQueue(TOPIC, "broker-0", number) for number in range(16)]
        offsets = LocalOffsets(OsDisk(tmp_path), "id", "g", runtime.offload)
        await offsets.open()
        for round_number in range(1, 4):
            for queue in queues:
                offsets.update(queue, round_number * 100 + queue.queue_id)
            await asyncio.gather(*(offsets.persist([queue]) for queue in queues))
        offsets.close()
        written = decode_reset_offsets((tmp_path / "id/g/offsets.json").read_bytes())
        assert written == {queue: 300 + queue.queue_id for queue in queues}

    asyncio.run(main())


def test_a_cancelled_open_leaves_the_file_unlocked() -> None:
    async def main() -> None:
        disk = SimDisk(1)
        calls: list[Callable[[], Any]] = []

        async def on_a_busy_thread(call: Callable[..., Any], *arguments: Any) -> Any:
            calls.append(functools.partial(call, *arguments))
            await asyncio.Event().wait()

        given_up = LocalOffsets(disk, "id", "g", cast(Any, on_a_busy_thread))
        opening = asyncio.create_task(given_up.open())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        given_up.close()
        calls[0]()  # the thread executes it now
        another = LocalOffsets(disk, "id", "g", call_directly)
        await another.open()
        with pytest.raises(StoreLockedError):
            disk.lock("id/g/lock")  # it is locked by `another`
        another.close()

    run_virtual(main())


def test_unchanged_offsets_are_not_written_again() -> None:
    async def main() -> None:
        disk = SimDisk(1)
        offsets = LocalOffsets(disk, "id", "g", call_directly)
        await offsets.open()
        queue = MessageQueue(TOPIC, "b", 0)
        name = "id/g/offsets.json"
        offsets.update(queue, 7)
        await offsets.persist([queue])
        disk.unlink(name)
        await offsets.persist([queue])
        assert not disk.exists(name)
        offsets.update(queue, 8)
        await offsets.persist([queue])
        assert disk.exists(name)
        offsets.close()

    run_virtual(main())

"""A broker starts, serves, and stops without losing requests and without hanging."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.errors import (
    AddressInUseError,
    ClosedError,
    ConnectFailedError,
    StoreLockedError,
)
from kourou.model.message import Message
from kourou.protocol.clients import (
    ConsumerData,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    encode_heartbeat,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.frame import encode_frame
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.queues.queue_tails import NEW_FILES_PER_FLUSH
from kourou.store.retention import RetentionConfig
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime
from kourou.testing.send_rig import message


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with Cluster(**options) as cluster:
            await test(cluster)

    run_virtual(main())


async def ask(cluster: Cluster, command: RemotingCommand) -> RemotingCommand:
    """Send one command to the broker over a connection of its own."""
    pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
    try:
        return await pool.request(format_address(cluster.broker_address()), command, 30)
    finally:
        await pool.close()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_store_in_use_is_refused_and_left_alone() -> None:
    async def test(cluster: Cluster) -> None:
        other = Broker(BrokerConfig(port=0), cluster.disk(), cluster.runtime, SimFlusher)
        with pytest.raises(StoreLockedError):
            await other.start()
        assert (await ask(cluster, message())).code == 0

    run(test)


def test_a_taken_port_is_refused_and_the_store_is_closed_again() -> None:
    async def test(cluster: Cluster) -> None:
        disk = SimDisk()
        config = BrokerConfig(port=cluster.broker_address()[1])
        other = Broker(config, disk, cluster.runtime, SimFlusher)
        with pytest.raises(AddressInUseError):
            await other.start()
        store = MessageStore.open(disk, config.store_config, 0, pid=1)
        assert store.recovery.was_clean
        store.close(0)

    run(test)


def test_a_broker_without_name_servers_serves_on_a_free_port() -> None:
    async def main() -> None:
        runtime = sim_runtime()
        broker = Broker(BrokerConfig(port=0), SimDisk(), runtime, SimFlusher)
        with pytest.raises(ClosedError):
            _ = broker.address
        with pytest.raises(ClosedError):
            _ = broker.store
        address = await broker.start()
        assert address == broker.address
        assert address[1] > 0
        pool = ConnectionPool(runtime, {}, ConnectionLimits())
        answer = await pool.request(format_address(address), message(), 3)
        assert answer.code == 0
        assert f"{address[1]:08X}" in answer.ext_fields["msgId"]
        await pool.close()
        await broker.stop()
        await broker.stop()

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (RequestCode.POP_LITE_MESSAGE, 3),
        (9999, 3),
    ],
)
def test_requests_that_are_not_served_are_refused(code: int, answer: int) -> None:
    async def test(cluster: Cluster) -> None:
        assert (await ask(cluster, request(code))).code == answer

    run(test)


def test_stop_answers_accepted_requests_and_saves_all_tables() -> None:
    async def test(cluster: Cluster) -> None:
        assert (await ask(cluster, message(topic="T"))).code == 0
        cluster.flusher().stall()
        client = await RawClient.connect(cluster.network, cluster.broker_address())
        old, new = message(topic="T"), message(topic="T")
        old.version, new.version = 475, 476
        client.write(encode_frame(message(topic="T")))
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(cluster.stop_broker())
        await asyncio.sleep(0.1)
        client.write(encode_frame(old) + encode_frame(new))
        assert [(each.code, each.remark) for each in await client.take(2)][1:] == [
            (1500, "please go away")
        ]
        with pytest.raises(ConnectFailedError):  # redirected clients cannot reconnect
            await ask(cluster, message(topic="T"))
        cluster.flusher().release()
        await stopping
        await client.closed()
        assert sorted(each.code for each in client.frames()) == [0, 14, 1500]
        await cluster.restart_broker()
        assert cluster.broker().store.recovery.was_clean
        assert cluster.broker().store.reader.max_offset("T", 0) == 2

    run(test)


def test_files_of_many_new_queues_are_written_soon() -> None:
    async def test(cluster: Cluster) -> None:
        topics = [f"T{number}" for number in range(2 * NEW_FILES_PER_FLUSH + 1)]
        for topic in topics:
            assert (await ask(cluster, message(topic=topic))).code == 0
        await asyncio.sleep(1.2)
        assert set(topics) <= set(cluster.disk().list("consumequeue"))

    run(test)


def test_stop_takes_at_most_two_seconds_with_hanging_peers() -> None:
    """A client that reads nothing, a held pull, and a name server that does not answer."""

    async def test(cluster: Cluster) -> None:
        assert (await ask(cluster, message(topic="T"))).code == 0
        held = asyncio.create_task(ask(cluster, request(RequestCode.PULL_MESSAGE, pull("T"))))
        await asyncio.sleep(0.5)
        assert not held.done()
        cluster.network.stall(("127.0.0.1", 9876))
        started_s = now_s()
        await cluster.stop_broker()
        assert now_s() - started_s < 2
        cluster.network.heal(("127.0.0.1", 9876))
        with pytest.raises(Exception, match="ended"):
            await held

    run(test)


def test_sends_are_accepted_within_five_seconds_after_a_full_disk_has_room() -> None:
    async def test(cluster: Cluster) -> None:
        disk = cluster.disk()
        assert (await ask(cluster, message(topic="T"))).code == 0
        free, disk.free = disk.free, 0
        while (await ask(cluster, message(topic="T"))).code == 0:  # noqa: ASYNC110 - it looks at times
            await asyncio.sleep(0.1)
        assert "bytes free" in "".join(cluster.broker().unready_reasons())
        disk.free = free
        started_s = now_s()
        while cluster.broker().unready_reasons():  # noqa: ASYNC110 - polls like a client of /readyz
            await asyncio.sleep(0.1)
        assert now_s() - started_s < 5
        assert (await ask(cluster, message(topic="T"))).code == 0

    run(test)


def pull(topic: str) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=2 | 4,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )


def test_a_member_with_other_requests_but_no_heartbeats_expires_after_two_minutes() -> None:
    heartbeat = encode_heartbeat(HeartbeatData("c", [], [ConsumerData("g")]))
    members = request(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader("g")
    )

    async def test(cluster: Cluster) -> None:
        pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
        address = format_address(cluster.broker_address())
        try:
            await pool.request(address, request(RequestCode.HEART_BEAT, None, heartbeat), 30)
            codes = []
            for _ in range(5):
                await asyncio.sleep(30)
                codes.append((await pool.request(address, members, 30)).code)
        finally:
            await pool.close()
        assert codes == [0, 0, 0, 0, 1]

    run(test)


def test_files_of_expired_messages_are_removed_while_it_runs() -> None:
    hours = ";".join(f"{hour:02}" for hour in range(24))
    retention = RetentionConfig(file_reserved_hours=1, delete_when=hours)
    store = StoreConfig(
        commitlog_segment_bytes=64 * 1024,
        consumequeue_file_bytes=20 * 100,
        batch_queue_file_bytes=46 * 100,
        retention=retention,
    )

    async def test(cluster: Cluster) -> None:
        for _ in range(20):
            assert (await ask(cluster, message(bytes(10_000), topic="T"))).code == 0
        first = f"commitlog/{0:020d}"
        assert cluster.disk().exists(first)
        await asyncio.sleep(3_600 + 90)
        assert not cluster.disk().exists(first)
        assert 0 < cluster.broker().store.reader.min_offset("T", 0) < 20

    run(test, store=store, message_delay_level="30m")


def test_a_held_pull_is_answered_when_a_message_comes() -> None:
    async def test(cluster: Cluster) -> None:
        assert (await ask(cluster, message(topic="T"))).code == 0
        held = asyncio.create_task(ask(cluster, request(RequestCode.PULL_MESSAGE, pull("T"))))
        await asyncio.sleep(1)
        assert not held.done()
        started_s = now_s()
        assert (await ask(cluster, message(b"news", topic="T"))).code == 0
        answer = await held
        assert answer.code == 0
        assert b"news" in answer.body
        assert now_s() - started_s < 1

    run(test)


def test_delayed_messages_that_became_due_while_the_broker_was_down_are_delivered() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer() as producer:
            await producer.send(Message("T", b"soon", delay_level=1))
            await producer.send(Message("T", b"later", delay_level=5))
            await asyncio.sleep(12)  # until the progress is saved
            assert delivered(cluster) == 1
            await cluster.crash_broker()
            await asyncio.sleep(90)
            await cluster.restart_broker()
            await asyncio.sleep(2)
            assert delivered(cluster) == 2

    def delivered(cluster: Cluster) -> int:
        store = cluster.broker().store
        return sum(store.reader.max_offset("T", queue_id) for queue_id in range(8))

    run(test)


def test_a_failed_save_of_tables_is_retried_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        disk = cluster.disk()

        def refuse(operation: str, name: str) -> None:
            if operation == "write" and name.startswith("config/"):
                raise OSError(28, "No space left on device")

        disk.on_operation = refuse
        assert (await ask(cluster, message(topic="T"))).code == 14
        await asyncio.sleep(30)
        disk.on_operation = None
        await asyncio.sleep(6)
        assert b'"T"' in disk.read("config/topics.json", 0, 1 << 20)

    with caplog.at_level(logging.INFO):
        run(test)
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("loop.")]
    assert logged == ["loop.failed name=save tables", "loop.recovered name=save tables"]


def test_store_with_pops_that_are_not_read_is_named_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        runtime = sim_runtime(0)
        disk = SimDisk()
        disk.make_directory("kvStore")
        disk.write("kvStore/CURRENT", 0, [b"MANIFEST-000004"])
        for _ in range(2):
            broker = Broker(BrokerConfig(port=0), disk, runtime, SimFlusher)
            await broker.start()
            await broker.stop()

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    warnings = [r.getMessage() for r in caplog.records if "pop_store" in r.getMessage()]
    assert len(warnings) == 2, "each start"
    assert "kvStore may hold pops of a Java broker" in warnings[0]
    assert "mqadmin exportPopRecord" in warnings[0]

"""A slave has the log and the queues of its master, whatever ends either of them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.pulling.pull import PullHandler
from kourou.broker.replication import slave, slave_connection
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.broker.replication.slave_transfer import compared_from
from kourou.broker.server import Broker
from kourou.errors import ConfigError
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.topic import TopicConfig
from kourou.protocol.brokers import (
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    HARuntimeInfo,
    ResetMasterFlushOffsetHeader,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.controller.headers import NotifyBrokerRoleChangedRequestHeader
from kourou.protocol.json_records import decode_record
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.replication import encode_transfer_head
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.ha_slave import log_bytes

MASTER, SLAVE = 0, 1


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    config = ReplicationConfig(
        broker_role=BrokerRole.ASYNC_MASTER, **options.pop("replication", {})
    )

    async def main() -> None:
        async with Cluster(slaves=1, replication=config, **options) as cluster:
            await test(cluster)

    run_virtual(main())


async def send(cluster: Cluster, count: int, size: int = 900, topic: str = "T") -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            body = random.Random(number).randbytes(size)
            await producer.send(Message(topic, body, tags=f"tag{number % 3}", keys=(f"k{number}",)))


async def until(is_true: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)


def end_of(cluster: Cluster, index: int) -> int:
    return cluster.broker(index).store.reader.synced_position


def visible(cluster: Cluster, index: int) -> int:
    return cluster.broker(index).store.reader.visible_position


async def caught_up(cluster: Cluster) -> None:
    """Return when the slave has stored and dispatched all that the master has."""

    def is_equal() -> bool:
        end = cluster.broker(MASTER).store.reader.written_position
        return visible(cluster, SLAVE) == end_of(cluster, SLAVE) == end

    await until(is_equal)


def assert_equal(cluster: Cluster) -> None:
    """Assert that both logs and all queue entries are equal."""
    master, slave = cluster.broker(MASTER).store.reader, cluster.broker(SLAVE).store.reader
    end = master.written_position
    assert slave.written_position == end
    assert log_bytes(cluster.broker(SLAVE), 0, end) == log_bytes(cluster.broker(MASTER), 0, end)
    assert slave.queues() == master.queues() != {}
    for topic, queue_ids in master.queues().items():
        for queue_id in queue_ids:
            for offset in range(master.max_offset(topic, queue_id)):
                entry = master.entry(topic, queue_id, offset)
                assert slave.entry(topic, queue_id, offset) == entry


def slave_state(broker: Broker) -> Any:
    slave = broker.components.slave
    assert slave is not None
    return slave


def slaves_of(cluster: Cluster) -> int:
    """Return how many slaves the master has."""
    master = cluster.broker(MASTER).components.master
    assert master is not None
    return len(master.slaves)


async def ask(cluster: Cluster, command: RemotingCommand, index: int = SLAVE) -> RemotingCommand:
    pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
    try:
        return await pool.request(format_address(cluster.broker_address(index)), command, 30)
    finally:
        await pool.close()


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(3))
def test_log_and_queues_become_those_of_the_master(flush: FlushDiskType, seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 150)
        await caught_up(cluster)
        await send(cluster, 30)
        await caught_up(cluster)

        assert end_of(cluster, SLAVE) > 2 * 64 * 1024
        assert_equal(cluster)

    run(test, seed=seed, flush_disk_type=flush)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", ["kill_broker", "crash_broker", "stop_broker"])
@pytest.mark.parametrize("index", [MASTER, SLAVE])
def test_copying_continues_after_any_end_of_either_broker(seed: int, end: str, index: int) -> None:
    async def test(cluster: Cluster) -> None:
        for _ in range(3):
            await send(cluster, 25)
            await getattr(cluster, end)(index)
            if index == SLAVE:
                await send(cluster, 10)
            await cluster.restart_broker(index)
        await send(cluster, 10)
        await caught_up(cluster)

        assert_equal(cluster)

    run(test, seed=seed)


def test_copying_continues_after_a_cut_and_a_stall_of_the_network() -> None:
    async def test(cluster: Cluster) -> None:
        host, port = cluster.broker_address(MASTER)
        await send(cluster, 20)
        cluster.network.cut((host, port + 1))
        await send(cluster, 20)
        await asyncio.sleep(20)
        cluster.network.heal((host, port + 1))
        await caught_up(cluster)
        cluster.network.stall((host, port + 1))
        await send(cluster, 20)
        await asyncio.sleep(40)  # both sides close a silent connection
        assert slaves_of(cluster) == 0
        cluster.network.heal((host, port + 1))
        await caught_up(cluster)

        assert_equal(cluster)

    run(test)


def test_copying_continues_after_an_unexpected_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [RuntimeError("unexpected")] * 3

    def failing(end: int, segment_bytes: int, size: int) -> int:
        if failures:
            raise failures.pop()
        return compared_from(end, segment_bytes, size)

    async def test(cluster: Cluster) -> None:
        await send(cluster, 8)
        await caught_up(cluster)

    monkeypatch.setattr(slave, "compared_from", failing)
    run(test)
    assert not failures
    (broken,) = [one for one in caplog.records if one.exc_info]  # logged once
    assert broken.getMessage().startswith("replication.broken")


def test_a_slave_reports_only_what_its_flush_mode_promises() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 5)
        await caught_up(cluster)
        master = cluster.broker(MASTER).components.master
        assert master is not None
        (connection,) = master.slaves
        cluster.flusher(SLAVE).stall()
        before = end_of(cluster, SLAVE)
        await send(cluster, 5)
        await asyncio.sleep(8)
        reader = cluster.broker(SLAVE).store.reader
        assert reader.written_position > before == reader.synced_position
        assert connection.progress.acknowledged == before
        assert visible(cluster, SLAVE) == before
        cluster.flusher(SLAVE).release()
        await caught_up(cluster)
        await until(lambda: connection.progress.acknowledged == end_of(cluster, MASTER))

    run(test)


def test_a_slave_stops_reading_while_its_disk_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_connection, "PENDING_BYTES_MAX", 20_000)

    async def test(cluster: Cluster) -> None:
        await send(cluster, 1)
        await caught_up(cluster)
        cluster.flusher(SLAVE).stall()
        await send(cluster, 200)
        await asyncio.sleep(10)
        # One read of the transport's window may follow.
        assert cluster.broker(SLAVE).components.context.commit.pending_bytes < 100_000
        assert end_of(cluster, MASTER) > 200_000
        cluster.flusher(SLAVE).release()
        await caught_up(cluster)
        assert_equal(cluster)

    run(test)


def test_a_slave_with_a_full_disk_continues_when_there_is_room() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 5)
        await caught_up(cluster)
        disk = cluster.disk(SLAVE)
        free, disk.free = disk.free, 0
        await send(cluster, 100)
        await asyncio.sleep(20)
        assert end_of(cluster, SLAVE) < end_of(cluster, MASTER)
        disk.free = free
        await caught_up(cluster)
        assert_equal(cluster)

    run(test)


@pytest.mark.parametrize("address", ["", "127.0.0.1:10912"])
def test_the_master_is_found_by_the_name_server_or_by_configuration(address: str) -> None:
    async def test(cluster: Cluster) -> None:
        assert slave_state(cluster.broker(SLAVE)).master_address == "127.0.0.1:10912"
        await send(cluster, 3)
        await caught_up(cluster)

    run(test, replication={"ha_master_address": address})


def test_the_status_of_both_sides_has_their_positions() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 5)
        await caught_up(cluster)
        await asyncio.sleep(6)
        end = end_of(cluster, MASTER)
        command = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
        ours = decode_record(HARuntimeInfo, (await ask(cluster, command, MASTER)).body)
        (slave,) = ours.ha_connection_info
        assert (ours.master, ours.master_commit_log_max_offset) == (True, end)
        assert (slave.slave_ack_offset, slave.diff, slave.in_sync) == (end, 0, True)
        assert ours.in_sync_slave_nums == 1
        theirs = decode_record(HARuntimeInfo, (await ask(cluster, command, SLAVE)).body)
        client = theirs.ha_client_runtime_info
        assert not theirs.master
        assert (client.master_addr, client.max_offset) == ("127.0.0.1:10912", end)
        now_ms = cluster.runtime.clock.now_ms()
        assert now_ms - 6000 < client.last_read_timestamp <= now_ms
        assert now_ms - 6000 < client.last_write_timestamp <= now_ms

    run(test)


def test_a_master_tells_where_its_log_is_copied() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 3)
        query = request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequestHeader())
        found = (await ask(cluster, query, MASTER)).header(ExchangeHAInfoResponseHeader)
        assert (found.master_address, found.master_ha_address) == (
            "127.0.0.1:10911",
            "127.0.0.1:10912",
        )
        assert found.master_flush_offset == end_of(cluster, MASTER)

        asked = await ask(cluster, query, SLAVE)
        assert asked.header(ExchangeHAInfoResponseHeader) == ExchangeHAInfoResponseHeader()

        other = ExchangeHAInfoRequestHeader("127.0.0.1:1", 0, "127.0.0.1:1")
        await ask(cluster, request(RequestCode.EXCHANGE_BROKER_HA_INFO, other), SLAVE)
        assert slave_state(cluster.broker(SLAVE)).master_address == "127.0.0.1:10912"

    run(test)


def test_position_up_to_which_the_master_is_durable_is_kept_by_slaves_only() -> None:
    async def test(cluster: Cluster) -> None:
        header = ResetMasterFlushOffsetHeader(12345)
        command = request(RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
        for index in (MASTER, SLAVE):
            assert (await ask(cluster, command, index)).code == ResponseCode.SUCCESS
        await cluster.stop_broker(SLAVE)
        await cluster.restart_broker(SLAVE)
        status = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
        kept = decode_record(HARuntimeInfo, (await ask(cluster, status, SLAVE)).body)
        assert kept.ha_client_runtime_info.master_flush_offset == 12345
        assert cluster.broker(MASTER).store.writer.master_flushed_offset == 0

    run(test)


def test_a_broker_outside_of_controller_mode_has_no_epochs_and_ignores_its_notices() -> None:
    async def test(cluster: Cluster) -> None:
        answer = await ask(cluster, RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE), MASTER)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not in controller mode" in (answer.remark or "")
        notice = request(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequestHeader()
        )
        assert (await ask(cluster, notice, MASTER)).code == ResponseCode.SUCCESS

    run(test)


def test_a_slave_that_starts_before_its_master_finds_it_later() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 3)
        for index in (MASTER, SLAVE):
            await cluster.stop_broker(index)
        await cluster.restart_broker(SLAVE)
        await asyncio.sleep(100)
        await cluster.restart_broker(MASTER)
        await send(cluster, 3)
        await caught_up(cluster)

        assert_equal(cluster)

    run(test)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [line for line in caplog.messages if line.startswith(event)]


def refused(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(logged(caplog, "replication.interrupted"))


async def lose_messages(cluster: Cluster, end: int) -> None:
    """Restart the master without its messages from log position `end` on, in the first file."""
    await cluster.kill_broker(MASTER)
    disk = cluster.disk(MASTER)
    disk.truncate("commitlog/00000000000000000000", end)
    disk.truncate("commitlog/00000000000000000000", 64 * 1024)
    disk.unlink("checkpoint")
    await cluster.restart_broker(MASTER)


def test_a_master_that_lost_messages_is_refused_and_the_slave_keeps_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 5)
        kept = end_of(cluster, MASTER)
        await send(cluster, 5)
        await caught_up(cluster)
        end = end_of(cluster, SLAVE)
        before = log_bytes(cluster.broker(SLAVE), 0, end)
        await lose_messages(cluster, kept)
        await asyncio.sleep(20)
        assert f"its log ends at {kept}, the slave's at {end}" in refused(caplog)
        await send(cluster, 20, size=300)
        await asyncio.sleep(20)
        assert "its log differs from the slave's at position" in refused(caplog)

        assert end_of(cluster, SLAVE) == end
        assert log_bytes(cluster.broker(SLAVE), 0, end) == before
        connected, interrupted = logged(caplog, "replication.connected"), refused(caplog)
        await asyncio.sleep(100)
        assert logged(caplog, "replication.connected") == connected, "further tries end alike"
        assert refused(caplog) == interrupted

    with caplog.at_level(logging.INFO):
        run(test)


def test_a_slave_that_is_longer_than_its_new_master_by_a_file_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 5)
        kept = end_of(cluster, MASTER)
        await send(cluster, 100)
        await caught_up(cluster)
        await cluster.kill_broker(MASTER)
        disk = cluster.disk(MASTER)
        for name in disk.list("commitlog")[1:]:
            disk.unlink(f"commitlog/{name}")
        disk.unlink("checkpoint")
        disk.truncate("commitlog/00000000000000000000", kept)
        disk.truncate("commitlog/00000000000000000000", 64 * 1024)
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(20)

        assert f"but the log ends at {kept}" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(test)


def test_sends_pops_and_ends_are_refused_with_javas_codes() -> None:
    async def test(cluster: Cluster) -> None:
        send_header = SendMessageRequestHeaderV2(
            producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=0, sys_flag=0, born_timestamp=1, flag=0, properties="", reconsume_times=0,
            unit_mode=False, batch=False,
        )  # fmt: skip
        codes = {
            code: (await ask(cluster, RemotingCommand(code, body=b"x"))).code
            for code in (
                RequestCode.SEND_BATCH_MESSAGE,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                RequestCode.PULL_MESSAGE,
                RequestCode.END_TRANSACTION,
                RequestCode.RECALL_MESSAGE,
                RequestCode.POP_MESSAGE,
                RequestCode.ACK_MESSAGE,
            )
        }
        sent = await ask(cluster, request(RequestCode.SEND_MESSAGE_V2, send_header, b"x"))
        assert sent.code == ResponseCode.SYSTEM_BUSY
        assert list(codes.values()) == [2, 2, 2, 11, 11, 14, 14]
        assert cluster.broker(SLAVE).store.reader.written_position == 0

    run(test)


async def pull(cluster: Cluster, offset: int, *, suspend_ms: int = 0) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group="G", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32,
        sys_flag=4 | (2 if suspend_ms else 0), commit_offset=0, suspend_timeout_millis=suspend_ms,
        subscription="*", sub_version=0,
    )  # fmt: skip
    return await ask(cluster, request(RequestCode.PULL_MESSAGE, header))


def test_pulls_of_a_slave_return_messages_and_are_held_but_correct_no_offset() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await caught_up(cluster)
        cluster.broker(SLAVE).components.tables.topics.put(TopicConfig("T"))
        found = await pull(cluster, 0)
        end = int(found.ext_fields["nextBeginOffset"])
        assert (found.code, bool(found.body), end) == (0, True, 3)
        assert found.ext_fields["suggestWhichBrokerId"] == "0"
        assert (await pull(cluster, end + 50)).code == 20

        held = asyncio.create_task(pull(cluster, end, suspend_ms=60_000))
        await asyncio.sleep(1)
        assert not held.done()
        await send(cluster, 4)
        assert ((await held).code, bool((await held).body)) == (0, True)

        await cluster.kill_broker(MASTER)
        assert (await pull(cluster, 0)).code == 0
        assert (await pull(cluster, end + 1, suspend_ms=5000)).code == 19

    run(test, replication={"slave_read_enable": True})


def test_pulls_of_a_slave_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the general path")

    monkeypatch.setattr(PullHandler, "on_pull_message", refuse)

    async def test(cluster: Cluster) -> None:
        await send(cluster, 4)
        await caught_up(cluster)
        tables = cluster.broker(SLAVE).components.tables
        tables.topics.put(TopicConfig("T"))
        tables.groups.put(SubscriptionGroup("G"))
        found = await pull(cluster, 0)
        assert (found.code, bool(found.body)) == (0, True)
        held = asyncio.create_task(pull(cluster, 1, suspend_ms=60_000))
        await asyncio.sleep(1)
        assert not held.done()
        await send(cluster, 4)
        assert ((await held).code, bool((await held).body)) == (0, True)

    run(test, replication={"slave_read_enable": True})


def test_a_garbage_master_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    class Garbage(asyncio.BufferedProtocol):
        sent = iter(
            (
                encode_transfer_head(0, 1 << 30),
                encode_transfer_head(-5, 10),
                encode_transfer_head(777, 3) + b"abc",
                encode_transfer_head(0, 200) + bytes(200),
                random.Random(3).randbytes(500),
            )
        )

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(next(self.sent, b""))

        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray(100)

    async def test(cluster: Cluster) -> None:
        listener = await cluster.network.listen(("127.0.0.1", 7777), Garbage)
        await asyncio.sleep(60)
        assert cluster.broker(SLAVE).store.reader.written_position == 0
        listener.close()

    with caplog.at_level(logging.WARNING):
        run(test, replication={"ha_master_address": "127.0.0.1:7777"})
    text = refused(caplog)
    for reason in (
        "frame of 1073741824 bytes exceeds",
        "neither can be negative",
        "which is not the start of a file",
        "position 0 are no record: size 0",
    ):
        assert reason in text


@pytest.mark.parametrize(
    ("broker_id", "role", "reason"),
    [
        (0, BrokerRole.SLAVE, "with broker_role SLAVE it must be at least 1"),
        (1, BrokerRole.SYNC_MASTER, "it must be 0, a master"),
        (1, None, "it must be 0, a master"),
    ],
)
def test_an_id_that_does_not_fit_the_role_is_refused(
    broker_id: int, role: BrokerRole | None, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig(broker_id=broker_id, replication=ReplicationConfig(broker_role=role))


def test_the_address_of_the_master_is_checked() -> None:
    with pytest.raises(ConfigError, match="ha_master_address: address 'nowhere' names no port"):
        dataclasses.replace(ReplicationConfig(), ha_master_address="nowhere")

"""A master sends synced bytes of its log to slaves, bounds them all, and survives any client."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.replication.master import GAP_IN_SYNC_BYTES, ReplicationMaster
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.errors import ConfigError
from kourou.logs import JsonFormatter
from kourou.model.message import Message
from kourou.protocol.replication import Transfer, encode_report
from kourou.remoting.network import Address
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime
from tests.broker.replication.ha_slave import HaSlave, log_bytes

KIB = 1024


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    sync_ms = options.pop("sync_ms", (0.5, 5.0))

    async def main() -> None:
        config = ReplicationConfig(**({"ha_listen_port": 0} | options))
        async with Cluster(replication=config, sync_ms=sync_ms) as cluster:
            await test(cluster)

    run_virtual(main())


def ha_address(cluster: Cluster) -> Address:
    host, port = cluster.broker_address()
    return host, port + 1


def master_of(cluster: Cluster) -> ReplicationMaster:
    master = cluster.broker().components.master
    assert master is not None
    return master


async def slave_of(cluster: Cluster, position: int | None = 0) -> HaSlave:
    return await HaSlave.connect(cluster.network, ha_address(cluster), position)


async def send(cluster: Cluster, count: int, size: int = 1000) -> None:
    async with cluster.producer() as producer:
        for _ in range(count):
            await producer.send(Message("T", random.Random(size).randbytes(size)))


def end_of(cluster: Cluster) -> int:
    return cluster.broker().store.reader.synced_position


def test_a_slave_receives_the_whole_log_and_what_follows() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 150)  # three files of 64 KiB
        slave = await slave_of(cluster)
        await slave.until_end(end_of(cluster))
        await send(cluster, 3)
        slave.report(slave.end)
        await slave.until_end(end_of(cluster))

        assert bytes(slave.data) == log_bytes(cluster.broker(), 0, end_of(cluster))
        assert all(len(transfer.data) <= 32 * KIB for transfer in slave.transfers())

    run(test)


def test_a_slave_continues_from_the_position_that_it_reports() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 20)
        slave = await slave_of(cluster, 12_345)
        await slave.until_end(end_of(cluster))

        assert slave.transfers()[0].position == 12_345
        assert bytes(slave.data) == log_bytes(cluster.broker(), 12_345, end_of(cluster))

    run(test)


def test_bytes_that_are_not_synced_never_leave() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 1)
        slave = await slave_of(cluster)
        await slave.until_end(end_of(cluster))
        before = end_of(cluster)
        slave.report(before)

        sending = asyncio.create_task(send(cluster, 1))
        reader = cluster.broker().store.reader
        await asyncio.sleep(1)
        assert reader.written_position > before
        assert reader.synced_position == before  # a sync takes two seconds here
        await asyncio.sleep(1)
        assert slave.end == before
        await sending
        await slave.until_end(end_of(cluster))

        assert slave.end > before

    run(test, sync_ms=(2000, 2000))


def test_sending_stops_at_the_limit_of_unreported_bytes_and_continues_after_a_report() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 40)
        slave = await slave_of(cluster)
        await slave.until_end(8 * KIB)
        await asyncio.sleep(3)
        assert slave.end == 8 * KIB

        slave.report(5000)
        await slave.until_end(5000 + 8 * KIB)
        await asyncio.sleep(3)

        assert slave.end == 5000 + 8 * KIB

    run(test, ha_ahead_bytes=8 * KIB)


def test_no_frame_exceeds_its_limit_although_more_is_read_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 40)
        slave = await slave_of(cluster)
        await slave.until_end(end_of(cluster))

        sizes = [len(transfer.data) for transfer in slave.transfers()]
        assert set(sizes[:-1]) == {KIB}
        assert 0 < sizes[-1] <= KIB
        assert bytes(slave.data) == log_bytes(cluster.broker(), 0, end_of(cluster))

    run(test, ha_transfer_batch_bytes=KIB)


def test_a_slave_far_behind_has_no_record_synced_for_it() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 40)
        master, slave = master_of(cluster), await slave_of(cluster)
        await slave.until_end(8 * KIB)
        assert master.slaves
        assert not master.has_slave_at_end

        while (at := slave.end) < end_of(cluster):
            slave.report(at)
            await slave.until_end(at + 1)
        assert master.has_slave_at_end

    run(test, ha_ahead_bytes=8 * KIB)


def test_a_record_beyond_that_limit_reaches_a_slave_that_reports_whole_records() -> None:
    async def test(cluster: Cluster) -> None:
        slave = await slave_of(cluster)
        await send(cluster, 1, size=15 * KIB)
        await slave.until_end(end_of(cluster))

        assert slave.end > 15 * KIB

    run(test, ha_ahead_bytes=1000)


def test_a_slave_that_reads_nothing_costs_bounded_memory_and_no_send() -> None:
    async def test(cluster: Cluster) -> None:
        slave = await slave_of(cluster)
        await send(cluster, 1)
        await slave.until_end(end_of(cluster))
        slave.client.pause()
        await send(cluster, 300, size=15 * KIB)
        progress = master_of(cluster).slaves[0].progress

        assert progress.sent - slave.end < 2048 * KIB < end_of(cluster)

    run(test)


def test_the_configured_rate_limits_a_slave() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 100)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        slave = await slave_of(cluster)
        await slave.until_end(end_of(cluster))

        assert 8 < loop.time() - began_s < 12  # 110 KB, of which 10 KB at once

    run(
        test,
        ha_flow_control_enable=True,
        max_ha_transfer_byte_in_second=10 * KIB,
        ha_transfer_batch_bytes=KIB,
    )


def test_heartbeats_follow_every_five_seconds_without_bytes() -> None:
    async def test(cluster: Cluster) -> None:
        slave = await slave_of(cluster)
        for _ in range(4):
            await asyncio.sleep(5.5)
            slave.report(0)
        heartbeats = slave.transfers()

        assert 3 <= len(heartbeats) <= 4
        assert set(heartbeats) == {Transfer(0, b"")}

    run(test)


def test_a_client_that_sends_nothing_is_closed_after_twenty_seconds() -> None:
    async def test(cluster: Cluster) -> None:
        silent, slave = await slave_of(cluster, None), await slave_of(cluster)
        began_s = asyncio.get_running_loop().time()
        await silent.client.closed()

        assert 19.9 <= asyncio.get_running_loop().time() - began_s <= 21.1
        assert slave.transfers()  # a heartbeat, although it sends nothing either
        await slave.client.closed()
        assert master_of(cluster).slaves == []

    run(test)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "it asks for the log from position 5135603447292250196"),
        (encode_report(-1), "a slave reported the negative log position -1"),
        (encode_report(1 << 40), "but the log ends at"),
        (encode_report(0) + encode_report(1 << 40), "but was sent the log only up to"),
    ],
)
def test_another_protocol_or_another_log_is_refused_by_name(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 3)
        client = await RawClient.connect(cluster.network, ha_address(cluster))
        client.write(sent)
        await client.closed(1)
        await send(cluster, 1)

    with caplog.at_level(logging.WARNING):
        run(test)
    (refused,) = [one for one in caplog.records if "replication.slave_refused" in one.message]
    entry = json.loads(JsonFormatter().format(refused))
    assert entry["event"] == "replication.slave_refused"
    assert reason in entry["reason"]


def test_a_hundred_garbage_clients_neither_fill_the_table_nor_stop_a_slave() -> None:
    async def test(cluster: Cluster) -> None:
        rng = random.Random(7)
        slave = await slave_of(cluster)
        await send(cluster, 2)
        for number in range(100):
            client = await RawClient.connect(cluster.network, ha_address(cluster))
            if number % 2:
                client.write(rng.randbytes(rng.randrange(1, 60)))
        await asyncio.sleep(1)
        await send(cluster, 2)
        await slave.until_end(end_of(cluster))
        late = await slave_of(cluster)  # takes the slot of a client that has not reported
        await late.until_end(end_of(cluster))

        assert bytes(late.data) == bytes(slave.data)
        assert len(master_of(cluster).slaves) == 2

    run(test, ha_slaves_max=10)


def test_slaves_beyond_the_limit_are_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        first = [await slave_of(cluster) for _ in range(2)]
        await send(cluster, 1)
        await first[0].until_end(end_of(cluster))
        third = await slave_of(cluster)
        await third.client.closed(1)

    with caplog.at_level(logging.WARNING):
        run(test, ha_slaves_max=2)
    assert "2 slaves are connected, limit 2 (haSlavesMax)" in caplog.text


def test_brokers_in_sync_are_hosts_that_are_not_far_behind() -> None:
    log = MemoryLog(bytes(3000))

    async def test(slave: HaSlave, master: ReplicationMaster) -> None:
        assert master.in_sync_brokers == 1
        slave.report(0)
        await slave.until_end(1)
        assert master.in_sync_brokers == 2
        log.written_position = GAP_IN_SYNC_BYTES
        assert master.in_sync_brokers == 1

    run_with(log, test)


def test_strangers_are_closed_at_once_and_logged_at_a_limited_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 2)
        for _ in range(100):
            stranger = await slave_of(cluster)
            stranger.client.write(b"x" * 100)
            await stranger.client.closed(1)
            assert stranger.transfers() == []
        assert master_of(cluster).slaves == []
        await send(cluster, 1)

    with caplog.at_level(logging.WARNING):
        run(test, ha_allowed_addresses=("10.0.0.0/8", "fd00::1"))
    refused = [line for line in caplog.messages if "replication.slave_refused" in line]
    assert all("not among those of haAllowedAddresses" in line for line in refused)
    assert 20 <= len(refused) <= 25


def test_copies_count_hosts_and_not_connections() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 2)
        end = end_of(cluster)
        slaves = [await slave_of(cluster) for _ in range(2)]
        for slave in slaves:
            await slave.until_end(end)
            slave.report(end)
        await asyncio.sleep(1)
        master = master_of(cluster)

        assert [slave.progress.acknowledged for slave in master.slaves] == [end, end]
        assert master.copied_position(1) == end
        assert master.copied_position(2) == -1

    run(test)


def test_a_stopping_broker_first_sends_the_rest_of_its_log() -> None:
    async def test(cluster: Cluster) -> None:
        slave = await slave_of(cluster)
        await send(cluster, 30)
        end = end_of(cluster)
        await cluster.stop_broker()

        assert slave.end == end

    run(test)


def test_the_registered_address_is_that_of_the_port_for_slaves() -> None:
    async def test(cluster: Cluster) -> None:
        assert master_of(cluster) is not None
        slave = await HaSlave.connect(cluster.network, ("127.0.0.1", 20_000), 0)
        await send(cluster, 1)
        await slave.until_end(end_of(cluster))

    run(test, ha_listen_port=20_000)


def test_without_the_option_no_port_is_opened() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            assert cluster.broker().components.master is None

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ha_listen_port": 65_536}, "ha_listen_port is 65536"),
        ({"ha_ahead_bytes": 0}, "ha_ahead_bytes is 0"),
        ({"ha_allowed_addresses": ("slave-1",)}, "ha_allowed_addresses: 'slave-1' does not"),
        ({"ha_transfer_batch_bytes": 4 << 20}, "slaves accept at most 4194292"),
        ({"ha_housekeeping_interval_ms": 5000}, "more than ha_send_heartbeat_interval_ms, 5000"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ReplicationConfig(**options)


class MemoryLog:
    """A synced log in memory, of which the page cache has nothing."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.min_position = 0
        self.written_position = self.synced_position = len(data)

    def segment_end(self, position: int) -> int:
        return position - position % KIB + KIB

    def written_view(self, physical_offset: int, size: int) -> None:
        del physical_offset, size

    def written_bytes(self, physical_offset: int, size: int) -> bytes:
        if physical_offset < self.min_position:
            raise FileNotFoundError(str(physical_offset))
        return self.data[physical_offset : physical_offset + size]


def run_with(log: MemoryLog, test: Callable[[HaSlave, ReplicationMaster], Awaitable[None]]) -> None:
    async def main() -> None:
        runtime = sim_runtime()
        config = ReplicationConfig(ha_listen_port=0, ha_ahead_bytes=KIB)
        master = ReplicationMaster(config, log, runtime, KIB)
        address = await master.start(("127.0.0.1", 0))
        await test(await HaSlave.connect(runtime.network, address, 0), master)
        master.abort()
        await asyncio.sleep(0.1)

    run_virtual(main())


def test_bytes_that_are_not_in_memory_are_read_off_the_loop() -> None:
    log = MemoryLog(random.Random(1).randbytes(3000))

    async def test(slave: HaSlave, _: ReplicationMaster) -> None:
        while slave.end < 3000:
            end = slave.end
            slave.report(end)
            await slave.until_end(end + 1)
        assert bytes(slave.data) == log.data

    run_with(log, test)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda log: setattr(log, "min_position", 2048), "the log begins at 2048 now, because"),
        (lambda log: setattr(log, "data", b""), "the log's file is cut short at position 1024"),
    ],
)
def test_a_slave_whose_bytes_are_gone_is_refused_by_name(
    damage: Callable[[MemoryLog], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(bytes(4096))

    async def test(slave: HaSlave, _: ReplicationMaster) -> None:
        await slave.until_end(1024)
        damage(log)
        slave.report(1024)
        await slave.client.closed(1)

    with caplog.at_level(logging.WARNING):
        run_with(log, test)
    assert reason in caplog.text

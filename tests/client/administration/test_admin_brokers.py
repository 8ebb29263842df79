"""Administration of brokers: settings, counters, offsets of all groups."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.administration.admin import TopicRates
from kourou.errors import ClosedError, NoPermissionError, RemoteSystemError, UsageError
from kourou.model.message import Message
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import recording


def address(cluster: Cluster, index: int = 0) -> str:
    host, port = cluster.broker_address(index)
    return f"{host}:{port}"


def test_broker_reports_settings_and_changes_live_ones() -> None:
    async def main() -> None:
        async with Cluster(seed=2, brokers=2) as cluster, cluster.admin() as admin:
            one, other = address(cluster), address(cluster, 1)
            config = await admin.broker_config(one)
            assert (config["brokerName"], config["autoCreateTopicEnable"]) == ("broker-0", "true")
            await admin.update_broker_config(one, {"autoCreateTopicEnable": "false"})
            assert (await admin.broker_config(one))["autoCreateTopicEnable"] == "false"
            assert (await admin.broker_config(other))["autoCreateTopicEnable"] == "true"
            with pytest.raises(NoPermissionError):
                await admin.update_broker_config(one, {"listenPort": "1"})
            with pytest.raises(RemoteSystemError, match="autoCreateTopicEnabel"):
                await admin.update_broker_config(one, {"autoCreateTopicEnabel": "true"})
            for nothing in ({}, {" ": "1"}):
                with pytest.raises(UsageError, match="at least one setting"):
                    await admin.update_broker_config(one, nothing)

    run_virtual(main())


def test_counters_of_one_broker_are_returned() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            broker = address(w.cluster)
            with pytest.raises(RemoteSystemError, match="<TOPIC_PUT_NUMS> <T> not exist"):
                await admin.broker_stats(broker, "TOPIC_PUT_NUMS", "T")
            await w.send(*[b"x"] * 3)
            await asyncio.sleep(31)
            await w.send(*[b"x"] * 4)
            await asyncio.sleep(31)
            stats = await admin.broker_stats(broker, "TOPIC_PUT_NUMS", "T")
            assert stats.minute.sum >= 4

    run_virtual(main())


def test_rates_have_a_row_for_each_topic_and_group() -> None:
    async def main() -> None:
        async with recording(queues=1, brokers=2) as w, w.cluster.admin() as admin:
            await admin.create_topic("quiet", queues=1)
            async with w.consumer():
                for _ in range(7):
                    await w.send(b"x", b"x")
                    await asyncio.sleep(10)
            await w.send(b"y", b"y", b"y")
            rows = await admin.all_stats()
            assert TopicRates("quiet", None, None, 0.0, 0.0, 0, 0) in rows
            assert not any(row.topic.startswith("%RETRY%") for row in rows)
            [row] = await admin.all_stats(["T", "absent"])
            assert (row.topic, row.group, row.lag) == ("T", "consumers", 3)
            assert 0.1 < row.in_tps < 0.3
            assert 0.1 < row.out_tps < 0.3
            assert row.in_24h >= row.out_24h > 0

    run_virtual(main())


def test_broker_reports_offsets_of_all_groups() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            async with w.consumer():
                await w.send(b"1", b"2")
                await w.until_received(b"1", b"2")
            await w.send(b"3")
            found = await admin.broker_consume_stats(address(w.cluster))
            assert found.total_diff == 1
            offsets = [one.offsets for one in found.stats["consumers"]]
            [at] = [at for some in offsets for queue, at in some.items() if queue.topic == "T"]
            assert at.consumer_offset == 2
            ordered = await admin.broker_consume_stats(address(w.cluster), ordered_only=True)
            assert ordered.total_diff == 0

    run_virtual(main())


def test_client_not_started_sends_no_request() -> None:
    async def main() -> None:
        async with Cluster(seed=2) as cluster:
            admin, broker = cluster.admin(), address(cluster)
            for call in (
                admin.runtime_info(broker),
                admin.broker_config(broker),
                admin.update_broker_config(broker, {"a": "b"}),
                admin.broker_stats(broker, "TOPIC_PUT_NUMS", "T"),
                admin.broker_consume_stats(broker),
                admin.producers(broker),
                admin.all_stats(),
            ):
                with pytest.raises(ClosedError):
                    await call

    run_virtual(main())


def test_replication_state_names_the_ends_of_master_and_slave() -> None:
    async def main() -> None:
        async with Cluster(seed=4, slaves=1) as cluster, cluster.admin() as admin:
            async with cluster.producer() as producer:
                await producer.send(Message("T", b"x"))
            await asyncio.sleep(1)
            master = await admin.ha_status(address(cluster, 0))
            slave = await admin.ha_status(address(cluster, 1))

        assert (master.master, slave.master) == (True, False)
        end = master.master_commit_log_max_offset
        assert end == slave.ha_client_runtime_info.max_offset > 0
        assert [one.slave_ack_offset for one in master.ha_connection_info] == [end]

    run_virtual(main())

"""Replicas of a controller's broker: copies, failover and truncation, whatever ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.replication.replication_config import BrokerRole
from kourou.client.send_receipt import Durability, SendStatus
from kourou.errors import EpochError, KourouError, RemoteSystemError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.store.state.epoch_file import read_epochs
from kourou.testing.loop import run_virtual
from tests.broker.replication.replica_rig import Killed, ReplicaRig, send, until

PATIENT = {"ha_max_time_slave_not_catchup_ms": 20_000}
"""Keeps a slave that copies nothing in the in-sync set."""


def run(test: Callable[[ReplicaRig], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with ReplicaRig(**options) as rig:
            await test(rig)

    run_virtual(main())


@pytest.mark.parametrize("flush", FlushDiskType)
def test_an_acknowledged_message_is_on_all_members_of_the_in_sync_set(
    flush: FlushDiskType,
) -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            for number in range(40):
                assert (await send(producer, b"%d" % number)).status is SendStatus.SEND_OK
                assert rig.end(2) == rig.end(3) == rig.end(1)
        await rig.caught_up()
        assert rig.log(2) == rig.log(3) == rig.log(1)
        assert rig.offsets(2) == rig.offsets(3) == rig.offsets(1)

    run(test, flush_disk_type=flush)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_receipt_counts_the_copies_that_no_election_can_lose(is_plain: bool) -> None:
    options: dict[str, Any] = {} if is_plain else {"delay_level": 1}  # not on the fast path

    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer(20_000) as producer:
            for left in (3, 2, 1):
                receipt = await send(producer, **options)
                assert receipt.status is SendStatus.SEND_OK
                if left > 1:
                    assert (receipt.durability, receipt.copies) == (Durability.REPLICATED, left)
                    await rig.stop(left)  # the next send is appended before the set is smaller
                else:
                    assert (receipt.durability, receipt.copies) == (Durability.DISK, None)

    run(test)


def test_fewer_acks_than_members_are_no_copies_that_every_election_keeps() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            receipt = await send(producer)
        assert (receipt.durability, receipt.copies) == (Durability.DISK, None)

    run(test, replication={"all_ack_in_sync_state_set": False})


def test_a_failover_loses_no_acknowledged_message_and_truncates_the_diverged_end() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        acknowledged = set()
        async with rig.producer() as producer:
            for number in range(60):
                receipt = await send(producer, b"%d" % number + b"x" * 900)
                acknowledged.add((receipt.queue.queue_id, receipt.queue_offset))
            await rig.caught_up()
            rig.network.stall(rig.ha_address(1))
            unconfirmed = await send(producer, b"never confirmed")
            assert unconfirmed.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        end = rig.end(2)
        assert rig.end(1) > end
        await rig.kill(1)
        rig.network.heal(rig.ha_address(1))

        await rig.elect(2)
        await rig.in_sync(1, 2, 3)

        assert rig.truncations == [(1, end)]
        async with rig.producer() as producer:
            for _ in range(20):
                receipt = await send(producer)
                key = (receipt.queue.queue_id, receipt.queue_offset)
                assert key not in acknowledged
                acknowledged.add(key)
        await rig.caught_up()
        assert rig.log(1) == rig.log(2) == rig.log(3)
        assert rig.offsets(1) == rig.offsets(2) == rig.offsets(3)
        per_queue = {queue_id for queue_id, _ in acknowledged}
        for queue_id in per_queue:
            count = sum(1 for one, _ in acknowledged if one == queue_id)
            assert rig.offsets(1)["T", queue_id] == count
        assert [list(read_epochs(rig.disks[number])) for number in (1, 3)] == [
            [(1, 0), (2, end)]
        ] * 2

    run(test, replication=PATIENT)


@pytest.mark.parametrize("operations", range(0, 230, 16))
@pytest.mark.parametrize("has_lost_power", [False, True])
def test_a_replica_that_is_killed_while_it_is_truncated_becomes_equal(
    operations: int, has_lost_power: bool
) -> None:
    async def test(rig: ReplicaRig) -> None:
        left = operations

        def count(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed(has_lost_power=has_lost_power)

        await rig.begin()
        async with rig.producer() as producer:
            for _ in range(10):
                await send(producer)
            await rig.caught_up()
            end = rig.end(1)
            rig.network.stall(rig.ha_address(1))
            sending = [asyncio.create_task(send(producer, b"x" * 900)) for _ in range(80)]
            await asyncio.gather(*sending)
            assert rig.end(1) > end + 65536  # more than a segment
        await rig.kill(1)
        rig.network.heal(rig.ha_address(1))
        rig.on_truncation = count

        await rig.elect(2)
        await rig.in_sync(1, 2)
        async with rig.producer() as producer:
            for number in range(10):
                assert (await send(producer, b"%d" % number)).status is SendStatus.SEND_OK
        await rig.caught_up()

        assert rig.truncations[0] == (1, end)
        assert rig.log(1) == rig.log(2)
        assert rig.offsets(1) == rig.offsets(2)

    run(test, replicas=2, replication=PATIENT)


def test_consumers_see_nothing_that_a_member_of_the_set_lacks() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            await rig.caught_up()
            end = rig.end(1)
            rig.network.stall(rig.ha_address(1))
            sending = asyncio.create_task(send(producer, b"unconfirmed"))
            await until(lambda: rig.end(1) > end)
            await asyncio.sleep(1)
            assert rig.master.store.reader.visible_position == end
            rig.network.heal(rig.ha_address(1))
            assert (await sending).status is SendStatus.SEND_OK
        await rig.caught_up()
        assert rig.master.log_state() == (1, rig.end(1), rig.end(1))

    run(test, replication=PATIENT)


def test_master_and_slaves_sync_at_the_same_time_and_show_what_all_have_synced() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            await rig.caught_up()
            end = rig.end(1)
            rig.flushers[1].stall()
            sending = asyncio.create_task(send(producer))
            readers = [rig.brokers[number].store.reader for number in (1, 2, 3)]
            await until(lambda: all(one.synced_position > end for one in readers[1:]))
            await asyncio.sleep(1.5)  # longer than any heartbeat takes
            assert [one.visible_position for one in readers] == [end] * 3
            assert not sending.done()
            rig.flushers[1].release()
            assert (await sending).status is SendStatus.SEND_OK
        await rig.caught_up()

    run(test)


def test_a_slave_truncates_what_its_master_has_lost_in_a_power_cut() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            await rig.caught_up()
            await asyncio.sleep(1)
            rig.network.stall(rig.ha_address(1))
            rig.flushers[1].stall()
            sending = asyncio.create_task(send(producer, b"x" * 4000))
            end = rig.master.store.reader.synced_position
            await until(lambda: rig.end(1) > end)
            rig.network.heal(rig.ha_address(1))
            await until(lambda: rig.end(2) == rig.end(1))
            await rig.crash(1)
            sending.cancel()
        rig.disks[1].truncate(f"commitlog/{0:020}", end)

        await rig.elect(1)
        await rig.in_sync(1, 2)

        assert rig.truncations == [(2, end)]
        assert rig.log(1) == rig.log(2)

    run(test, replicas=2)


def test_a_dead_slave_leaves_the_set_within_3_seconds_and_returns() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        loop = asyncio.get_running_loop()
        async with rig.producer() as producer:
            await send(producer)
            await rig.kill(3)
            began_s = loop.time()
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert loop.time() - began_s < 3
            assert rig.controller.stored.members == {1, 2}
            await rig.start(3)
            await rig.in_sync(1, 2, 3)

    run(test)


def test_sends_are_refused_with_fewer_members_than_configured() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            await rig.kill(2)
            await rig.kill(3)
            receipt = await send(producer)
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            await asyncio.sleep(5)
            assert len(rig.controller.stored.members) >= 2, "they can still be elected"
            with pytest.raises(RemoteSystemError, match="minInSyncReplicas is 2"):
                await send(producer)
            await rig.start(2)
            await rig.in_sync(1, 2)
            assert (await send(producer)).status is SendStatus.SEND_OK

    run(test, replication={"min_in_sync_replicas": 2})


def test_a_lost_answer_keeps_the_proposed_member_until_the_controller_is_asked() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.elect(1)
        await rig.in_sync(1, 2, 3)
        async with rig.producer(10_000) as producer:
            await send(producer)
            rig.controller.lost_answers = 1
            await rig.kill(3)
            await until(lambda: rig.controller.stored.members == {1, 2})
            receipt = await send(producer)
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT  # 3 may still be a member

            rig.master.adopt_in_sync(rig.controller.stored)

            assert (await send(producer)).status is SendStatus.SEND_OK

    run(test)


def test_a_slave_counts_from_its_proposal_on_although_the_answer_is_lost() -> None:
    async def test(rig: ReplicaRig) -> None:
        rig.controller.lost_answers = 1
        await rig.elect(1)
        await until(lambda: rig.controller.stored.members == {1, 2})
        async with rig.producer(10_000) as producer:
            await send(producer)  # creates the topic
            await rig.kill(2)
            receipt = await send(producer)
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT  # 2 may be elected

            rig.master.adopt_in_sync(rig.controller.stored)

            await rig.in_sync(1)
            assert (await send(producer)).status is SendStatus.SEND_OK

    run(test, replicas=2)


def test_a_fenced_master_refuses_sends_and_acknowledges_nothing() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            rig.network.stall(rig.ha_address(1))
            end = rig.end(1)
            sending = asyncio.create_task(send(producer))
            await until(lambda: rig.end(1) > end)
            rig.master.fence("its lease has ended")
            rig.network.heal(rig.ha_address(1))
            assert (await sending).status is SendStatus.FLUSH_SLAVE_TIMEOUT
            with pytest.raises(KourouError, match="its lease has ended"):
                await send(producer)
            rig.master.unfence()
            assert (await send(producer)).status is SendStatus.SEND_OK

    run(test)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.END_TRANSACTION,
    ],
)
def test_a_fenced_master_refuses_other_changes(code: RequestCode) -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.elect(1)
        rig.master.fence("its lease has ended")

        answer = await rig.ask(1, request(code))

        assert (answer.code, answer.remark) == (14, "its lease has ended")
        rig.master.unfence()
        assert (await rig.ask(1, request(code))).remark != "its lease has ended"

    run(test, replicas=1)


def test_a_slave_serves_pulls_when_what_it_started_with_is_confirmed() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
        await rig.caught_up()
        pull = request(RequestCode.PULL_MESSAGE)
        await rig.kill(2)
        rig.network.cut(rig.ha_address(1))
        await rig.start(2)
        refused = await rig.ask(2, pull)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "does not know yet" in (refused.remark or "")

        rig.network.heal(rig.ha_address(1))
        await rig.in_sync(1, 2, 3)
        await asyncio.sleep(2)

        assert "does not know yet" not in ((await rig.ask(2, pull)).remark or "")

    run(test, replication={"slave_read_enable": True})


def test_a_master_whose_successor_is_known_acknowledges_nothing() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        old = rig.master
        async with rig.producer() as producer:
            await send(producer)
            rig.controller.elect(2)
            for slave in (2, 3):  # the old master goes on
                await rig.kill(slave)
                await rig.start(slave)
            receipt = await send(producer)
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            old.adopt_in_sync(rig.controller.stored)
            receipt = await send(producer)  # refused, and sent to the successor
            assert int(receipt.offset_msg_id[8:16], 16) == rig.brokers[2].address[1]
        await rig.kill(1)
        await rig.start(1)
        await rig.in_sync(1, 2, 3)

    run(test)


def test_a_master_that_starts_again_in_its_epoch_is_refused() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
        await rig.kill(1)
        with pytest.raises(EpochError, match="needs a new epoch"):
            await rig.start(1)
        del rig.brokers[1]

    run(test)


def test_with_fewer_copies_than_members_a_send_is_acknowledged_earlier_than_visible() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        async with rig.producer() as producer:
            await send(producer)
            await rig.caught_up()
            end, began_s = rig.end(1), asyncio.get_running_loop().time()
            await rig.kill(3)
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert asyncio.get_running_loop().time() - began_s < 0.5
            assert rig.end(2) == rig.end(1)
            assert rig.master.store.reader.visible_position == end
            await rig.kill(2)
            assert (await send(producer)).status is SendStatus.FLUSH_SLAVE_TIMEOUT

    run(
        test,
        replication={
            "broker_role": BrokerRole.SYNC_MASTER,
            "all_ack_in_sync_state_set": False,
            "in_sync_replicas": 2,
            **PATIENT,
        },
    )


def test_ha_status_shows_the_members_of_the_in_sync_set() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.elect(1)
        async with rig.producer() as producer:
            await send(producer)
        await rig.caught_up()
        status = rig.master.components.ha_status()
        assert [slave.in_sync for slave in status.ha_connection_info] == [False, False]
        assert status.in_sync_slave_nums == 0

    run(test, replication={"async_learner": True})


def test_a_controller_that_is_down_is_asked_once_a_period() -> None:
    async def test(rig: ReplicaRig) -> None:
        rig.controller.lost_requests = 1_000
        await rig.elect(1)
        async with rig.producer() as producer:
            began_s = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began_s + 5:
                await send(producer)
            assert 5 <= len(rig.controller.proposals) <= 12
            rig.controller.lost_requests = 0
            await rig.in_sync(1, 2, 3)

    run(test)


def test_a_slave_copies_on_when_its_caller_waits_for_no_truncation_any_more() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        rig.brokers[2].truncation_needed().cancel()
        rig.network.cut(rig.ha_address(1))
        rig.network.heal(rig.ha_address(1))
        async with rig.producer() as producer:
            await send(producer)
        await rig.caught_up()

    run(test)


def test_a_master_that_members_confirm_proposes_no_set() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.begin()
        before = list(rig.controller.proposals)
        rig.master.note_failsafe(is_active=True)
        await rig.kill(2)
        await asyncio.sleep(5)
        assert rig.controller.proposals == before
        rig.master.note_failsafe(is_active=False)
        await rig.in_sync(1, 3)

    run(test)


def test_a_learner_copies_and_never_joins() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.elect(1)
        async with rig.producer() as producer:
            await send(producer)
        await rig.caught_up()
        await asyncio.sleep(3)
        assert rig.controller.proposals == []

    run(test, replication={"async_learner": True})

"""A master in controller mode serves any slave: in these tests one without a store, as Java's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.client.send_receipt import SendStatus
from kourou.model.epochs import EpochEntry
from kourou.protocol.epoch_replication import (
    EpochTransfer,
    MasterFrame,
    MasterFrameDecoder,
    MasterHandshake,
    SlaveHandshake,
    encode_report,
    encode_slave_handshake,
)
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from tests.broker.replication.replica_rig import ReplicaRig, send, until

SLAVE = 7


class EpochSlave:
    """One connection to a master's port for slaves."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self._decoder = MasterFrameDecoder()
        self._decoded = 0
        self._frames: list[MasterFrame] = []

    @classmethod
    async def connect(cls, rig: ReplicaRig, handshake: SlaveHandshake | None) -> EpochSlave:
        slave = cls(await RawClient.connect(rig.network, rig.ha_address(1)))
        if handshake is not None:
            slave.client.write(encode_slave_handshake(handshake))
            await slave.client.until(lambda: bool(slave.frames()))
        return slave

    def report(self, position: int) -> None:
        self.client.write(encode_report(position))

    def frames(self) -> list[MasterFrame]:
        """Return all frames so far."""
        new = bytes(self.client.received[self._decoded :])
        self._decoded += len(new)
        self._frames += self._decoder.feed(new)
        return self._frames

    def transfers(self) -> list[EpochTransfer]:
        return [frame for frame in self.frames() if isinstance(frame, EpochTransfer)]

    @property
    def end(self) -> int:
        """The log position after the last received byte; -1 before the first."""
        transfers = self.transfers()
        return transfers[-1].position + len(transfers[-1].data) if transfers else -1


def run(test: Callable[[ReplicaRig], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with ReplicaRig(1, **options) as rig:
            await rig.elect(1)
            await test(rig)

    run_virtual(main())


async def store(rig: ReplicaRig, count: int) -> None:
    async with rig.producer() as producer:
        for number in range(count):
            assert (await send(producer, b"%d" % number * 90)).status is SendStatus.SEND_OK


def test_a_slave_is_answered_with_the_epochs_and_gets_each_of_them_by_itself() -> None:
    async def test(rig: ReplicaRig) -> None:
        starts = [0]
        for _ in range(2):
            await store(rig, 5)
            starts.append(rig.end(1))
            await rig.elect(1)
        await store(rig, 5)
        slave = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))
        epochs = [EpochEntry(number, start) for number, start in enumerate(starts, 1)]
        [hello] = slave.frames()
        assert isinstance(hello, MasterHandshake)
        assert hello.end == rig.end(1)
        assert list(hello.epochs) == epochs

        slave.report(0)
        await until(lambda: slave.end == rig.end(1))

        transfers = slave.transfers()
        assert b"".join(transfer.data for transfer in transfers) == rig.log(1)
        assert [transfer.position for transfer in transfers] == starts
        assert [transfer.epoch for transfer in transfers] == epochs

    run(test)


def test_a_slave_joins_only_with_everything_that_was_confirmed_without_it() -> None:
    async def test(rig: ReplicaRig) -> None:
        await store(rig, 1)
        first_end = rig.end(1)
        slave = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))
        slave.report(0)
        await until(lambda: slave.end == first_end)
        async with rig.producer(10_000) as producer:
            await send(producer)
            end = rig.end(1)
            assert rig.master.log_state().confirm_offset == end

            slave.report(first_end)  # it is close, but may not be elected yet
            await asyncio.sleep(0.1)
            assert rig.controller.proposals == []
            sending = asyncio.create_task(send(producer))
            await until(lambda: rig.end(1) > end)
            await asyncio.sleep(0.1)
            assert not sending.done()
            assert rig.master.store.reader.visible_position == end
            slave.report(end)
            await rig.in_sync(1, SLAVE)
            assert not sending.done()
            slave.report(rig.end(1))
            assert (await sending).status is SendStatus.SEND_OK

    run(test)


def test_a_slave_that_is_close_and_stops_delays_sends_for_less_than_a_second() -> None:
    async def test(rig: ReplicaRig) -> None:
        await store(rig, 1)
        first_end = rig.end(1)
        slave = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))
        slave.report(0)
        await until(lambda: slave.end == first_end)
        await store(rig, 1)
        slave.report(first_end)
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()

        await store(rig, 1)

        assert asyncio.get_running_loop().time() - began_s < 1.1
        assert rig.controller.proposals == []

    run(test)


def test_two_connections_of_one_slave_count_once() -> None:
    async def test(rig: ReplicaRig) -> None:
        await store(rig, 1)
        old = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))
        old.report(rig.end(1))
        await rig.in_sync(1, SLAVE)

        new = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))

        await old.client.until(lambda: old.client.is_closed)
        new.report(rig.end(1))
        async with rig.producer() as producer:
            sending = asyncio.create_task(send(producer))
            await until(lambda: new.end == rig.end(1))
            assert not sending.done()
            new.report(rig.end(1))
            assert (await sending).status is SendStatus.SEND_OK

    run(test)


def test_an_idle_slave_is_told_of_what_is_confirmed() -> None:
    async def test(rig: ReplicaRig) -> None:
        await store(rig, 1)
        slave = await EpochSlave.connect(rig, SlaveHandshake(SLAVE))
        slave.report(rig.end(1))
        await rig.in_sync(1, SLAVE)
        async with rig.producer() as producer:
            sending = asyncio.create_task(send(producer))
            await until(lambda: slave.end == rig.end(1))
            assert slave.transfers()[-1].confirm < rig.end(1)
            slave.report(rig.end(1))
            await sending
        await until(lambda: slave.transfers()[-1].confirm == rig.end(1), timeout_s=0.05)
        assert not slave.transfers()[-1].data

    run(test)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([encode_report(0)], "a report before its handshake"),
        ([encode_slave_handshake(SlaveHandshake(SLAVE))] * 2, "a second handshake"),
        ([encode_slave_handshake(SlaveHandshake(1))], "own broker id 1"),
        ([encode_slave_handshake(SlaveHandshake(SLAVE)), encode_report(1 << 40)], "log ends at"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "classic protocol"),
        ([bytes(8)], "enableControllerMode differs"),
    ],
)
def test_a_peer_that_is_no_slave_of_this_master_is_refused(
    frames: list[bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: ReplicaRig) -> None:
        await store(rig, 1)
        slave = await EpochSlave.connect(rig, None)
        slave.client.write(b"".join(frames))
        await slave.client.until(lambda: slave.client.is_closed)
        assert reason in caplog.text
        await store(rig, 1)
        assert rig.controller.proposals == []

    run(test)

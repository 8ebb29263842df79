"""A broker's transactions without a network: half messages, ends, check rounds, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from kourou.broker.clients import Member, Peer
from kourou.broker.transactions.half_messages import GROUP
from kourou.broker.transactions.op_messages import read_op
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.model.message import MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kourou.model.topic import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from kourou.remoting.steady_time import steady_ms
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0


@dataclass(frozen=True)
class Half:
    """A half message and the position of its record."""

    queue_offset: int
    physical_offset: int
    unique_key: str
    msg_id: str
    group: str


class TransactionRig:
    """One broker with its transactions started."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.sends = SendRig(broker)
        self.transactions = broker.transactions
        self.handlers = broker.transactions.handlers()

    async def half(
        self, body: bytes = b"x", *, group: str = "p", topic: str = "T", queue_id: int = 0,
        born_at_ms: int | None = None, lone: LoneConnection | None = None, **properties: str,
    ) -> Half:  # fmt: skip
        """Send a half message, by the connection `lone` if one is given."""
        defaults = {"TRAN_MSG": "true", "PGROUP": group} | properties
        born = self.broker.clock.now_ms() if born_at_ms is None else born_at_ms
        command = message(
            body, encode_properties(defaults).decode(), topic=topic, queue_id=queue_id,
            producer_group=group, born_timestamp=born, sys_flag=4,
        )  # fmt: skip
        if lone is None:
            peer = FakePeer()
            peer.ask(self.sends.handlers.on_send_message, peer.request_of(command))
            answer = await _answer(peer)
        else:
            lone.receive(command)
            await asyncio.sleep(0.1)
            [answer] = lone.sent()
            lone.transport.writes.clear()
        assert answer.code == 0, answer
        fields = answer.ext_fields
        return Half(
            int(fields["queueOffset"]),
            decode_offset_msg_id(fields["msgId"])[1],
            fields["transactionId"],
            fields["msgId"],
            group,
        )

    def begin_end(
        self, half: Half, verdict: int, *, is_checked: bool = False, oneway: bool = False,
        **fields: Any,
    ) -> FakePeer:  # fmt: skip
        """End a transaction, and return the peer that gets the answer."""
        defaults: dict[str, Any] = {
            "producer_group": half.group,
            "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": half.physical_offset,
            "commit_or_rollback": verdict,
            "from_transaction_check": is_checked,
            "msg_id": half.unique_key,
        }
        header = EndTransactionRequestHeader(**defaults | fields)
        peer = FakePeer()
        asked = peer.request(RequestCode.END_TRANSACTION, header, oneway=oneway)
        peer.ask(self.handlers[RequestCode.END_TRANSACTION], asked)
        return peer

    async def end(self, half: Half, verdict: int, **fields: Any) -> RemotingCommand:
        """End a transaction, and return the answer."""
        peer = self.begin_end(half, verdict, **fields)
        return await _answer(peer)

    async def resume(self, msg_id: str) -> RemotingCommand:
        """Resume the checks of a half message, and return the answer."""
        peer = FakePeer()
        asked = peer.request(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(msg_id)
        )
        peer.ask(self.handlers[RequestCode.RESUME_CHECK_HALF_MESSAGE], asked)
        return await _answer(peer)

    def connect(self, group: str = "p", port: int = 40_000) -> FakePeer:
        """Connect a producer of the group."""
        peer = FakePeer(port)
        member = Member(f"id-{port}", cast(Peer, peer), LanguageCode.JAVA, 513, steady_ms())
        self.broker.clients.register_producer(member, group)
        return peer

    async def round(self, after_s: float = 0) -> None:
        """Run one check round after a pause."""
        await asyncio.sleep(after_s)
        await self.transactions.check()

    def stored(self, topic: str = "T") -> list[MessageExt]:
        """Return the messages of all queues of a topic."""
        store, found = self.broker.store, []
        for queue_id in range(4):
            for offset in range(store.reader.max_offset(topic, queue_id)):
                entry = store.reader.entry(topic, queue_id, offset)
                assert entry is not None
                record = store.reader.read_record(entry.physical_offset)
                assert record is not None
                found.append(decode_message(record))
        return found

    def bodies(self, topic: str = "T") -> list[bytes]:
        """Return the bodies of a topic's messages, sorted."""
        return sorted(message.body for message in self.stored(topic))

    def halves(self) -> list[MessageExt]:
        """Return all half records."""
        return self.stored(TRANS_HALF_TOPIC)

    def given_up(self) -> list[MessageExt]:
        """Return the messages that were given up."""
        return self.stored(TRANS_CHECK_MAX_TIME_TOPIC)

    def ops(self) -> list[list[int]]:
        """Return the half messages that each op message names."""
        store, found = self.broker.store, []
        for offset in range(store.reader.max_offset(TRANS_OP_HALF_TOPIC, 0)):
            entry = store.reader.entry(TRANS_OP_HALF_TOPIC, 0, offset)
            assert entry is not None
            record = store.reader.read_record(entry.physical_offset)
            assert record is not None
            found.append(read_op(record))
        return found

    def progress(self) -> tuple[int | None, int | None]:
        """Return the committed progress of the half queue and the op queue."""
        query = self.broker.offsets.query
        return query(GROUP, TRANS_HALF_TOPIC, 0), query(GROUP, TRANS_OP_HALF_TOPIC, 0)


async def _answer(peer: FakePeer) -> RemotingCommand:
    """Return the command sent to the peer within a minute."""
    for _ in range(60_000):
        if peer.sent:
            break
        await asyncio.sleep(0.001)
    [answer] = peer.sent
    return answer


def checked_half(command: RemotingCommand, group: str = "p") -> Half:
    """Return the half message that a check (39) names."""
    assert command.code == RequestCode.CHECK_TRANSACTION_STATE
    assert command.is_oneway
    header = command.header(CheckTransactionStateRequestHeader)
    return Half(
        header.tran_state_table_offset, header.commit_log_offset, header.msg_id or "",
        header.offset_msg_id or "", group,
    )  # fmt: skip


def run(
    test: Callable[[TransactionRig], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    later_ms: int = 0,
    **rules: Any,
) -> SimDisk:
    """Run `test` with a broker, stop it cleanly, and check its store; `rules` of transactions."""

    async def main(broker: SimulatedBroker) -> None:
        broker.transactions.start()
        await test(TransactionRig(broker))
        broker.flusher.release()

    config = small_config(transactions=TransactionConfig(**rules))
    return run_with_broker(main, disk, config=config, later_ms=later_ms)


def run_killed(
    test: Callable[[TransactionRig], Coroutine[Any, Any, None]],
    disk: SimDisk | None = None,
    *,
    is_power_cut: bool = False,
    later_ms: int = 0,
    **rules: Any,
) -> SimDisk:
    """Run `test` with a broker that is killed after it."""
    the_disk = disk or SimDisk()

    async def main() -> None:
        config = small_config(transactions=TransactionConfig(**rules))
        broker = SimulatedBroker(the_disk, config=config, later_ms=later_ms)
        broker.transactions.start()
        try:
            await test(TransactionRig(broker))
        finally:
            broker.abandon()
            await asyncio.sleep(0)

    run_virtual(main())
    if is_power_cut:
        the_disk.crash()
    return the_disk

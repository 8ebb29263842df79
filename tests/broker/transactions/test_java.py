"""Compatibility with recorded exchanges and a store of the Java broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from kourou.broker.config import BrokerConfig
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import CheckTransactionStateRequestHeader
from kourou.testing.clock import EPOCH_MS
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.transactions.transaction_rig import (
    COMMIT,
    TransactionRig,
    checked_half,
    run,
)
from tests.golden_exchanges import exchanges
from tests.store.golden import load

RECORDED_UNTIL_MS = 1_795_227_500_000


@pytest.mark.parametrize(
    "name",
    ["37_END_TRANSACTION_raw-end-transaction-bad-offset_rc1"],
)
def test_a_refused_end_gets_javas_remark(name: str) -> None:
    recorded = exchanges()[name]
    assert recorded.response is not None
    expected = recorded.response.command

    async def test(rig: TransactionRig) -> None:
        await rig.half()
        peer = FakePeer()
        asked = peer.request_of(recorded.request.command)
        peer.ask(rig.handlers[RequestCode.END_TRANSACTION], asked)
        await asyncio.sleep(1)
        assert (peer.sent[0].code, peer.sent[0].remark) == (expected.code, expected.remark)

    run(test)


def test_javas_client_can_end_its_half_message() -> None:
    half = exchanges()["310_SEND_MESSAGE_V2_tx-commit"].request.command
    end = exchanges()["37_END_TRANSACTION_tx-commit"].request.command

    async def test(rig: TransactionRig) -> None:
        answer = await rig.sends.ask(half)
        assert answer.code == ResponseCode.SUCCESS
        [stored] = rig.halves()
        sent = decode_properties(half.ext_fields["i"].encode())
        assert stored.properties == sent | {
            "__transactionId__": sent["UNIQ_KEY"], "REAL_TOPIC": "GoldenTran", "REAL_QID": "0",
            "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
        } | {n: v for n, v in stored.properties.items() if n == names.CRC32}  # fmt: skip
        assert answer.ext_fields["transactionId"] == sent["UNIQ_KEY"]
        end.ext_fields["tranStateTableOffset"] = answer.ext_fields["queueOffset"]
        end.ext_fields["commitLogOffset"] = str(int(answer.ext_fields["msgId"][16:], 16))
        peer = FakePeer()
        peer.ask(rig.handlers[RequestCode.END_TRANSACTION], peer.request_of(end))
        await asyncio.sleep(1)
        assert not peer.sent
        assert rig.bodies("GoldenTran") == [b"committed"]

    run(test)


def test_a_check_equals_javas() -> None:
    recorded = exchanges()["39_CHECK_TRANSACTION_STATE_tx-unknown-then-check"].request.command
    half = exchanges()["310_SEND_MESSAGE_V2_tx-unknown-then-check"].request.command
    group = "golden_tx_producer"

    async def test(rig: TransactionRig) -> None:
        producer = rig.connect(group)
        half.ext_fields["g"] = str(rig.broker.clock.now_ms())
        await rig.sends.ask(half)
        await rig.round(after_s=30)
        [check] = producer.sent
        assert check.ext_fields.keys() == recorded.ext_fields.keys()
        fixed = ("bname", "topic", "msgId", "transactionId")
        assert [check.ext_fields[name] for name in fixed] == [
            recorded.ext_fields[name] for name in fixed
        ]
        assert check.flag == recorded.flag
        ours, theirs = decode_message(check.body), decode_message(recorded.body)
        assert (ours.topic, ours.queue_id, ours.body) == (
            theirs.topic,
            theirs.queue_id,
            theirs.body,
        )
        reported = CheckTransactionStateRequestHeader
        assert ours.queue_offset == check.header(reported).tran_state_table_offset
        assert theirs.queue_offset == recorded.header(reported).tran_state_table_offset
        own = {names.WAIT, names.TRAN_PREPARED_QUEUE_OFFSET, names.CRC32}
        assert {n: v for n, v in ours.properties.items() if n not in own} == {
            n: v for n, v in theirs.properties.items() if n not in own
        }

    run(test)


def test_a_store_of_the_java_broker_is_continued() -> None:
    golden = load("clean")
    config = BrokerConfig(
        store=replace(golden.config), max_message_size_bytes=1 << 15,
    )  # fmt: skip

    async def main(broker: SimulatedBroker) -> None:
        rig = TransactionRig(broker)
        before = Counter(message.msg_id for message in rig.stored("StoreTran"))
        broker.transactions.start()
        await asyncio.sleep(1)
        assert rig.transactions.counts.open_by_topic() == {"StoreTran": 6}
        producer = rig.connect("store_tx_producer")
        await rig.round(after_s=30)
        assert len(producer.sent) == 6
        for check in producer.sent:
            asked = checked_half(check, "store_tx_producer")
            answer = await rig.end(asked, COMMIT, is_checked=True)
            assert answer.code == ResponseCode.SUCCESS
        for _ in range(3):
            await rig.round(after_s=30)
        assert len(producer.sent) == 6
        after = Counter(message.msg_id for message in rig.stored("StoreTran"))
        assert len(after - before) == 6
        assert set(after.values()) == {1}
        head, _ = rig.progress()
        assert head == broker.store.reader.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)

    run_with_broker(main, golden.disk, config=config, later_ms=RECORDED_UNTIL_MS - EPOCH_MS)

"""Half messages on the fast paths produce the same bytes as on the general path."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.transactions.half_messages import committed_draft, place_half, read_half
from kourou.broker.transactions.plain_halves import (
    HALF_TOPIC_BYTES,
    half_target,
    plain_group,
)
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.properties import encode_properties
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.frame import encode_frame
from kourou.protocol.record.encode import RecordDraft, encode_committed, encode_sealed
from kourou.protocol.record.layout import SEAL_BYTES
from kourou.remoting.limits import ConnectionLimits
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.send_rig import message
from tests.broker.transactions.test_fast_end import frame
from tests.broker.transactions.transaction_rig import ROLLBACK, Half, TransactionRig, run
from tests.golden_exchanges import exchanges

_TEXTS = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=20)


def half_frame(number: int, body: bytes = b"body", **fields: Any) -> bytes:
    properties = {
        "TRAN_MSG": "true", "UNIQ_KEY": f"{number:032X}", "WAIT": "true", "PGROUP": "p",
        "KEYS": f"k{number}", "TAGS": "A",
    }  # fmt: skip
    text = encode_properties(properties).decode()
    command = message(body, text, sys_flag=4, **fields)
    command.opaque = number
    return encode_frame(command)


@given(
    body=st.binary(min_size=1, max_size=300),
    user=st.dictionaries(_TEXTS.filter(bool), _TEXTS.filter(bool), max_size=4),
    topic=st.text("abcT_-", min_size=1, max_size=127),
    numbers=st.tuples(*[st.integers(0, 1 << 40)] * 5),
    queue_id=st.integers(0, 9999),
    sys_flag=st.sampled_from((0, 1, 2, 3, 0x301)),
)
def test_the_record_of_a_fast_path_commit_equals_that_of_the_general_path(
    body: bytes, user: dict[str, str], topic: str, numbers: tuple[int, ...], queue_id: int,
    sys_flag: int,
) -> None:  # fmt: skip
    unique_id = "A" * 32
    before = user | {"TRAN_MSG": "true", "UNIQ_KEY": unique_id, "PGROUP": "p", "CLUSTER": "c"}
    if not plain_group(before):
        return
    properties = dict(before)
    placement = place_half(topic, queue_id, properties, "p")
    born_at_ms, half_at, half_place, place, store_at_ms = numbers
    draft = RecordDraft(
        topic=placement.topic.encode(), queue_id=placement.queue_id, flag=0, sys_flag=sys_flag,
        born_at_ms=born_at_ms, born_host=("10.0.0.1", 99), store_host=("10.0.0.2", 10911),
        reconsume_times=0, prepared_transaction_offset=0, body=body,
        properties=encode_properties(properties),
    )  # fmt: skip
    record = encode_sealed(draft, half_at, half_place, store_at_ms)
    target = half_target(TopicConfig(topic), queue_id)
    size = len(draft.properties) - len(target.properties)
    made = encode_committed(
        record[:-SEAL_BYTES], HALF_TOPIC_BYTES, (target.topic_bytes, queue_id),
        size, (place, 7, store_at_ms, half_place),
    )  # fmt: skip
    general = committed_draft(read_half(record), queue_id, half_place)
    assert b"".join(made) == encode_sealed(general, 7, place, store_at_ms)
    assert len(record) + target.more_bytes == len(b"".join(made))


def test_properties_that_affect_an_end_are_left_to_the_general_path() -> None:
    plain = {"TRAN_MSG": "true", "PGROUP": "p"}
    assert plain_group(plain) == "p"
    for name in (
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__CRC32#", "REAL_TOPIC",
        "REAL_QID", "__transactionId__",
    ):  # fmt: skip
        assert not plain_group(plain | {name: "1"}), name


async def make_queues(rig: TransactionRig) -> None:
    """Store a message in the half queue and in queue 0 of `T`."""
    await rig.broker.topics.persist()
    await rig.sends.send(b"first")
    await rig.end(await rig.half(b"rolled back"), ROLLBACK)


def halves_of(lone: LoneConnection) -> list[Half]:
    """Return the half messages of a connection's answers, and drop the answers."""
    answers = lone.sent()
    lone.transport.writes.clear()
    assert {answer.code for answer in answers} <= {0}
    return [
        Half(
            int(answer.ext_fields["queueOffset"]),
            decode_offset_msg_id(answer.ext_fields["msgId"])[1],
            answer.ext_fields["transactionId"],
            answer.ext_fields["msgId"],
            "p",
        )
        for answer in answers
    ]


def test_alternating_half_messages_and_commits_take_the_fast_paths() -> None:
    async def test(rig: TransactionRig) -> None:
        await make_queues(rig)
        lone = LoneConnection({}, rig.sends.fast_path)  # without a general path
        ended: list[Half] = []
        for turn in range(5):
            halves = [half_frame(10 * turn + n) for n in range(4)]
            ends = [frame(half) for half in ended]
            lone.receive_bytes(b"".join(itertools.chain(*itertools.zip_longest(
                ends, halves, fillvalue=b""
            ))))  # fmt: skip
            await asyncio.sleep(1)
            assert len(lone.transport.writes) == 1, "all halves of a read are answered together"
            ended = halves_of(lone)
            assert len(ended) == 4
        await asyncio.sleep(5)
        assert len(rig.bodies()) == 1 + 16
        assert rig.transactions.counts.open_by_topic() == {"T": 4}
        assert lone.connection.unanswered.has_room(
            ConnectionLimits().unanswered_bytes_max, ConnectionLimits().unanswered_requests_max
        )

    run(test)


def test_commits_that_do_not_fit_into_the_segment_take_the_general_path() -> None:
    async def test(rig: TransactionRig) -> None:
        await make_queues(rig)
        lone = LoneConnection({310: rig.sends.handlers.on_send_message}, rig.sends.fast_path)
        lone.receive_bytes(b"".join(half_frame(n, b"b" * 100_000) for n in range(9)))
        await asyncio.sleep(1)
        lone.receive_bytes(b"".join(map(frame, halves_of(lone))))
        await asyncio.sleep(5)
        assert len(rig.bodies()) == 1 + 9
        assert sorted(offset for op in rig.ops() for offset in op) == list(range(10))

    run(test)


def test_requests_of_javas_client_take_the_fast_paths() -> None:
    half = exchanges()["310_SEND_MESSAGE_V2_tx-commit"].request.frame
    end = exchanges()["37_END_TRANSACTION_tx-commit"].request.frame

    async def test(rig: TransactionRig) -> None:
        await rig.sends.ask(exchanges()["310_SEND_MESSAGE_V2_tx-commit"].request.command)
        [first] = rig.halves()
        topic = first.properties["REAL_TOPIC"]
        for queue_id in range(4):
            await rig.sends.send(b"first", topic=topic, queue_id=queue_id)
        lone = LoneConnection({}, rig.sends.fast_path)
        lone.receive_bytes(half)
        await asyncio.sleep(1)
        [stored] = [one for one in lone.sent() if one.code == ResponseCode.SUCCESS]
        place = decode_offset_msg_id(stored.ext_fields["msgId"])[1]
        lone.receive_bytes(acknowledged_halves(end, place, int(stored.ext_fields["queueOffset"])))
        await asyncio.sleep(1)
        assert len(rig.stored(topic)) == 4 + 1
        assert len(lone.sent()) == 1

    run(test)


def acknowledged_halves(end: bytes, place: int, queue_offset: int) -> bytes:
    """Return a recorded END_TRANSACTION, changed to name another half message."""
    header = end[8:]
    for name, value in (("commitLogOffset", place), ("tranStateTableOffset", queue_offset)):
        header = re.sub(
            rb'"%b":"\d+"' % name.encode(), b'"%b":"%d"' % (name.encode(), value), header
        )
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_broker_that_refuses_half_messages_refuses_them_on_both_paths(is_fast: bool) -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.broker.topics.persist()
        await rig.sends.send(b"makes the queue")
        lone = rig.sends.connect(is_fast=is_fast)
        lone.receive_bytes(half_frame(1))
        await asyncio.sleep(1)
        assert [answer.code for answer in lone.sent()] == [16]
        assert not rig.halves()

    run(test, reject_transaction_message=True)

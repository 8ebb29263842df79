"""The fast path of pops and acks has the outcome of the general path, and leaves others to it."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from kourou.broker.popping.pop_config import PopConfig
from kourou.errors import ProtocolError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.popping.headers import PopMessageResponseHeader
from kourou.protocol.popping.info_strings import parse_offsets, parse_start_offsets
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.connection import Connection
from kourou.remoting.limits import ConnectionLimits
from kourou.testing.disk import SimDisk
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

POP = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "3000",
    "pollTime": "0",
    "initMode": "0",
    "expType": "TAG",
    "exp": "*",
    "order": "false",
    "bname": "broker-a",
}
ONE_REVIVE_QUEUE = small_config(pop=PopConfig(revive_queue_num=1))
"""The paths count the pops whose checkpoints they distribute to the revive queues differently."""


class Peer(FakePeer):
    """A connection that records the frames it sends."""

    def __init__(self, port: int = 50_000) -> None:
        super().__init__(port)
        self.limits = ConnectionLimits()
        self.on_closed: list[Callable[[Connection], None]] = []
        self.frames: list[bytes] = []

    def send_frames(self, data: bytes) -> None:
        self.frames.append(data)

    send_now = send_frames

    def send(self, command: Any) -> None:
        self.frames.append(encode_frame(command))


class Rig:
    """One client of a broker, whose frames take the fast path if it accepts them."""

    def __init__(self, broker: SimulatedBroker, *, is_fast: bool = True) -> None:
        self.broker = broker
        self.peer = Peer()
        self.is_fast = is_fast
        self.path = broker.components.popping.fast_pops
        self.fast_count = 0

    def feed(self, data: bytes) -> None:
        """Serve a frame."""
        if self.is_fast:
            buffer = bytearray(b"before" + data + b"behind")
            at = self.path(cast(Connection, self.peer), buffer, 6, len(buffer))
            if at != 6:
                assert at == 6 + len(data)
                self.fast_count += 1
                return
        try:
            command = decode_frame(data[4:])
        except ProtocolError:
            self.peer.frames.append(b"refused")
            return
        handler = self.broker.components.popping.handlers()[command.code]
        self.peer.ask(handler, self.peer.request_of(command))

    async def ask(self, data: bytes) -> bytes:
        """Serve a frame and return the frame of the answer."""
        before = len(self.peer.frames)
        self.feed(data)
        for _ in range(400):
            if len(self.peer.frames) > before:
                break
            await asyncio.sleep(0.001)
        assert len(self.peer.frames) == before + 1
        assert self.peer.unanswered.count == 0
        return self.peer.frames[-1]

    def pop_frame(self, fields: Mapping[str, object] = {}, **members: Any) -> bytes:
        born = {"bornTime": str(self.broker.clock.now_ms())}
        return frame(RequestCode.POP_MESSAGE, {**POP, **born, **fields}, **members)

    async def pop(self, fields: Mapping[str, object] = {}) -> bytes:
        return await self.ask(self.pop_frame(fields))


def frame(
    code: int, fields: Mapping[str, object], *, body: bytes = b"", **members: object
) -> bytes:
    """Return a request as clients write it."""
    header: dict[str, object] = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA"}
    header |= {"opaque": 7, "serializeTypeCurrentRPC": "JSON", "version": 513}
    text = json.dumps(header | members, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def parts_of(answer: bytes) -> list[tuple[str, str, int, list[int], PopMessageResponseHeader]]:
    """Return kind, queue, start and offsets of each queue of an answer, and its header."""
    command = decode_frame(answer[4:])
    if command.code:
        return []
    header = command.header(PopMessageResponseHeader)
    starts = parse_start_offsets(header.start_offset_info or "")
    offsets = parse_offsets(header.msg_offset_info or "")
    return [(*key, starts[key], offsets[key], header) for key in starts]


def single_acks(answer: bytes, **changes: str) -> list[bytes]:
    """Return an ack of each message of an answer to a pop."""
    acks = []
    for kind, queue, start, offsets, header in parts_of(answer):
        for offset in offsets:
            words = [start, header.pop_time, header.invisible_time, header.revive_qid, kind]
            handle = " ".join(map(str, [*words, "broker-a", queue, offset]))
            fields = {"consumerGroup": "g", "topic": "T", "queueId": queue, "extraInfo": handle}
            fields |= {"offset": str(offset), "bname": "broker-a"}
            acks.append(frame(RequestCode.ACK_MESSAGE, fields | changes))
    return acks


def batch_ack(*answers: bytes, mask: int = -1, **changes: object) -> bytes:
    """Return one ack of all messages of answers, or of those whose bits are in the mask."""
    acks = []
    for answer in answers:
        for kind, queue, start, offsets, header in parts_of(answer):
            bits = sum(1 << offset - start for offset in offsets) & mask
            data = bits.to_bytes(-(-bits.bit_length() // 8), "little")
            acks.append(
                {
                    "b": base64.b64encode(data).decode(), "c": "g", "it": header.invisible_time,
                    "pt": header.pop_time, "q": int(queue), "r": kind, "rq": header.revive_qid,
                    "so": start, "t": "T",
                }
                | changes
            )  # fmt: skip
    body = json.dumps({"acks": acks, "brokerName": "broker-a"}).encode()
    return frame(RequestCode.BATCH_ACK_MESSAGE, {"bname": "broker-a"}, body=body)


def state_of(broker: SimulatedBroker) -> object:
    """Return the state that pops and acks change."""
    popping, stats = broker.components.popping, broker.stats
    offsets = [broker.offsets.query("g", "T", queue_id) for queue_id in range(4)]
    gets = [
        (topic, group, [(item.calls, item.messages, item.size_bytes) for item in items])
        for topic, group, items in stats.gets()
    ]
    named = [
        stats.named(name)
        for name in ("GROUP_CK_NUMS", "BROKER_CK_NUMS", "GROUP_ACK_NUMS", "BROKER_ACK_NUMS")
    ]
    in_flight = popping.in_flight.counts(), popping.in_flight.checkpoint_count
    return offsets, gets, named, in_flight, popping.counts.puts, len(popping.holds)


async def fill(broker: SimulatedBroker, dice: random.Random, count: int) -> None:
    """Store messages of various sizes in four queues."""
    broker.groups.get_or_create("g")
    await broker.groups.persist()
    for _ in range(count):
        body = b"b" * dice.choice((0, 10, 1000, 5000))
        await broker.store_messages([broker.draft(body, queue_id=dice.randrange(4))])


def differing(dice: random.Random) -> dict[str, object]:
    """Return random fields of a pop, mostly those of a plain one."""
    choices: dict[str, tuple[object, ...]] = {
        "queueId": ("0", "1", "2", "3", "4", "-1", "-2", "x", "00", 1),
        "maxMsgNums": ("1", "2", "5", "31", "32", "33", "0", "-1", "1.0"),
        "invisibleTime": ("0", "900", "1000", "1001", "5000", "99999999999999", "x"),
        "exp": ("*", "", "TagA", "||", None),
        "expType": ("TAG", "SQL92", "", None),
        "order": ("false", None, "x"),
        "initMode": ("0", "1", "x"),
        "topic": ("T", "V", "rmq_sys_wheel_timer"),
        "consumerGroup": ("g", "?", "CID_RMQ_SYS_x"),
        "attemptId": ("a", None),
        "bornTime": ("0", "5", "x"),
        "liteTopic": ("a", 1, None),
    }
    if dice.random() < 0.5:
        return {"maxMsgNums": dice.choice(("1", "3", "8", "32"))}
    names = dice.sample(sorted(choices), dice.choice((1, 2)))
    return {name: dice.choice(choices[name]) for name in names}


def differing_ack(dice: random.Random, answers: list[bytes]) -> bytes:
    """Return a random ack of messages of these answers."""
    answer = dice.choice(answers)
    kind = dice.randrange(8)
    if kind == 0:
        return batch_ack(*dice.sample(answers, min(2, len(answers))))
    if kind == 1:
        return batch_ack(answer, mask=dice.getrandbits(33))
    if kind == 2:
        changes: list[dict[str, Any]] = [
            {"b": "!"}, {"q": 99}, {"q": "1"}, {"rq": 5}, {"rq": 999}, {"pt": 5}, {"r": "1"},
            {"c": "CID_RMQ_SYS_x"}, {"t": "V"}, {"so": 0}, {"it": "x"}, {"b": None},
        ]  # fmt: skip
        return batch_ack(answer, **dice.choice(changes))
    singles = single_acks(answer)
    if not singles:
        return batch_ack(answer)
    if kind == 3:
        wrong: list[dict[str, str]] = [
            {"topic": "V"}, {"queueId": "9"}, {"queueId": "x"}, {"offset": "99"}, {"offset": "x"},
            {"extraInfo": "x"}, {"extraInfo": "0 1 2 999 0 b 0 0"}, {"consumerGroup": "h"},
        ]  # fmt: skip
        return dice.choice(single_acks(answer, **dice.choice(wrong)))
    return batch_ack(answer) if kind < 6 else dice.choice(singles)


@pytest.mark.parametrize("seed", range(4))
def test_random_pops_and_acks_have_the_same_outcome_on_both_paths(seed: int) -> None:
    received: list[list[bytes]] = []
    left: list[object] = []
    counts: list[int] = []

    def run(*, is_fast: bool) -> Callable[[SimulatedBroker], Coroutine[Any, Any, None]]:
        async def test(broker: SimulatedBroker) -> None:
            dice, rig = random.Random(seed), Rig(broker, is_fast=is_fast)
            random_source = broker.runtime.random
            await fill(broker, dice, 80)
            popped: list[bytes] = []
            frames: list[bytes] = []
            for number in range(150):
                first = dice.randrange(100)
                random_source.randrange = lambda *_, first=first: first  # type: ignore[method-assign]
                if popped and dice.random() < 0.5:
                    frames.append(await rig.ask(differing_ack(dice, popped)))
                else:
                    frames.append(await rig.pop({"invisibleTime": "9000", **differing(dice)}))
                    if parts_of(frames[-1]):
                        popped = [*popped[-5:], frames[-1]]
                if number == 100:
                    broker.offsets.reset("g", "T", 1, 2)
                if not number % 10:
                    await asyncio.sleep(dice.random() * 2)
                    await fill(broker, dice, 20)
            received.append(frames)
            left.append(state_of(broker))
            counts.append(rig.fast_count)

        return test

    disks = [
        run_with_broker(run(is_fast=is_fast), is_delivering=True, config=ONE_REVIVE_QUEUE)
        for is_fast in (False, True)
    ]

    for general, fast in zip(*received, strict=True):
        assert general == fast
    assert left[0] == left[1]
    assert log_of(disks[0]) == log_of(disks[1])
    assert counts[0] == 0
    assert counts[1] > 30


def log_of(disk: SimDisk) -> list[bytes]:
    names = [f"commitlog/{name}" for name in sorted(disk.list("commitlog"))]
    return [disk.read(name, 0, disk.size(name)) for name in names]


def on_broker(
    test: Callable[[SimulatedBroker, Rig], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run a test with a broker that has six messages in two queues, and a client."""

    async def run(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        await broker.groups.persist()
        rig = Rig(broker)
        for queue_id in range(4):
            broker.offsets.commit("g", "T", queue_id, 0)
        for number in range(6):
            await broker.store_messages([broker.draft(b"%d" % number, queue_id=number % 2)])
        await test(broker, rig)

    run_with_broker(run, is_delivering=True, config=options.pop("config", ONE_REVIVE_QUEUE))


def bodies(answer: bytes) -> list[bytes]:
    return sorted(message.body for message in decode_messages(decode_frame(answer[4:]).body))


def test_plain_pop_and_ack_take_the_fast_path_and_acknowledged_messages_do_not_come_back() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        answer = await rig.pop()
        assert bodies(answer) == [b"%d" % number for number in range(6)]
        assert decode_frame((await rig.ask(batch_ack(answer)))[4:]).code == 0
        assert rig.fast_count == 2
        await asyncio.sleep(6)
        assert broker.components.popping.in_flight.checkpoint_count == 0
        assert parts_of(await rig.pop()) == []
        assert broker.store.reader.max_offset(broker.timers.needless.topic, 0) == 0

    on_broker(test)


def test_unacknowledged_message_of_a_fast_pop_comes_back() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        answer = await rig.pop()
        await rig.ask(batch_ack(answer, mask=~1))
        await asyncio.sleep(6)
        assert bodies(await rig.pop()) == [b"0", b"1"]
        assert rig.path.declined == {"retry": 1}

    on_broker(test)


def test_ack_in_the_last_second_is_delivered_after_its_checkpoint() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        answer = await rig.pop()
        await asyncio.sleep(2.5)
        await rig.ask(batch_ack(answer))
        assert not len(broker.timers.needless)
        await asyncio.sleep(5)
        assert parts_of(await rig.pop()) == []

    on_broker(test)


def test_single_acks_of_one_checkpoint_share_a_record() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        answer = await rig.pop({"queueId": "0"})
        before = broker.store.reader.max_offset("rmq_sys_wheel_timer", 0)
        acks = single_acks(answer)
        for ack in acks:
            rig.feed(ack)
        await asyncio.sleep(0.1)
        assert rig.fast_count == 1 + len(acks)
        assert len(rig.peer.frames) == 1 + len(acks)
        assert broker.store.reader.max_offset("rmq_sys_wheel_timer", 0) == before + 1
        assert rig.peer.unanswered.count == 0

    on_broker(test)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"queueId": "9"}, "queue"),
        ({"queueId": "x"}, "number"),
        ({"bornTime": "x"}, "number"),
        ({"bornTime": "5"}, "late"),
        ({"topic": "V"}, "topic"),
        ({"consumerGroup": "new"}, "group"),
        ({"exp": "TagA"}, "filter"),
        ({"order": "true"}, "order"),
        ({"maxMsgNums": "0"}, "count"),
        ({"maxMsgNums": "33"}, "count"),
        ({"invisibleTime": "900"}, "invisible time"),
        ({"queueId": "2"}, "messages not found"),
        ({"attemptId": "x" * 5000}, "size"),
    ],
)
def test_declined_pops_are_counted_by_reason(fields: dict[str, object], reason: str) -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        await rig.pop(fields)
        assert (rig.fast_count, rig.path.declined) == (0, {reason: 1})
        await broker.store_messages([broker.draft()])
        assert parts_of(await rig.pop())
        assert rig.fast_count == 1

    on_broker(test)


def test_change_takes_effect_with_the_next_pop() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        one = {"maxMsgNums": "1"}
        assert parts_of(await rig.pop(one))
        broker.topics.put(TopicConfig("T", 4, 4, perm=PERM_WRITE))
        assert parts_of(await rig.pop(one)) == []
        broker.topics.put(TopicConfig("T", 4, 4))
        assert parts_of(await rig.pop(one))
        broker.groups.put(SubscriptionGroup("g", consume_enable=False))
        assert parts_of(await rig.pop(one)) == []
        broker.groups.put(SubscriptionGroup("g"))
        await broker.groups.persist()
        assert parts_of(await rig.pop(one))
        broker.live_config.update({"brokerPermission": "2"}, 1)
        assert parts_of(await rig.pop(one)) == []
        assert rig.path.declined == {"forbidden": 3}
        assert rig.fast_count == 3

    on_broker(test)


def test_pop_without_a_born_time_is_held_for_its_poll_time_also_when_it_becomes_unusual() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        await rig.pop({"invisibleTime": "60000"})
        rig.feed(rig.pop_frame({"pollTime": "5000", "bornTime": "0"}, opaque=8))
        assert rig.fast_count == 2
        await asyncio.sleep(3)
        broker.live_config.update({"enablePopMessageThreshold": "true"}, 1)
        broker.components.popping.holds.wake("T", "g", 0)
        await asyncio.sleep(1.5)
        assert rig.path.declined == {"threshold": 1}
        assert len(rig.peer.frames) == 1
        await asyncio.sleep(1)
        assert decode_frame(rig.peer.frames[1][4:]).code == ResponseCode.POLLING_TIMEOUT

    on_broker(test)


def test_held_pop_is_answered_with_the_next_message() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        await rig.pop()
        rig.feed(rig.pop_frame({"pollTime": "5000"}, opaque=8))
        await asyncio.sleep(1)
        assert len(rig.peer.frames) == 1
        assert rig.peer.unanswered.count == 1
        await broker.store_messages([broker.draft(b"new", queue_id=3)])
        await asyncio.sleep(0.1)
        assert bodies(rig.peer.frames[-1]) == [b"new"]
        assert decode_frame(rig.peer.frames[-1][4:]).opaque == 8
        assert rig.peer.unanswered.count == 0
        assert rig.fast_count == 2
        assert rig.path.declined == {}

    on_broker(test)


def test_held_pop_is_answered_at_the_end_of_its_time_or_passed_on_when_refused() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        await rig.pop()
        rig.feed(rig.pop_frame({"pollTime": "2000"}))
        await asyncio.sleep(2.5)
        assert decode_frame(rig.peer.frames[-1][4:]).code == ResponseCode.POLLING_TIMEOUT
        rig.feed(rig.pop_frame({"pollTime": "2000"}))
        broker.groups.put(SubscriptionGroup("g", consume_enable=False))
        await asyncio.sleep(0.1)
        assert decode_frame(rig.peer.frames[-1][4:]).code == ResponseCode.NO_PERMISSION
        assert rig.peer.unanswered.count == 0

    on_broker(test)


def test_end_of_a_hold_has_the_same_answer_on_both_paths() -> None:
    answers: list[dict[str, object]] = []

    def run(*, is_fast: bool) -> Callable[[SimulatedBroker, Rig], Coroutine[Any, Any, None]]:
        async def test(broker: SimulatedBroker, rig: Rig) -> None:
            await rig.pop({"invisibleTime": "60000"})
            rig.is_fast = is_fast
            rig.feed(rig.pop_frame({"pollTime": "2000"}, opaque=9))
            await asyncio.sleep(3)
            answer = decode_frame(rig.peer.frames[-1][4:])
            answers.append({"code": answer.code, "remark": answer.remark, **answer.ext_fields})
            assert answer.opaque == 9
            assert (rig.path.declined, rig.fast_count) == ({}, 1 + is_fast)
            assert rig.peer.unanswered.count == 0

        return test

    for is_fast in (False, True):
        on_broker(run(is_fast=is_fast))
    assert answers[0] == answers[1]
    assert answers[0]["code"] == ResponseCode.POLLING_TIMEOUT


def test_queue_is_locked_until_its_checkpoint_is_stored() -> None:
    async def test(_: SimulatedBroker, rig: Rig) -> None:
        rig.feed(rig.pop_frame({"queueId": "0"}))
        rig.feed(rig.pop_frame({"queueId": "0", "pollTime": "500"}))
        rig.feed(rig.pop_frame({"queueId": "1"}))
        await asyncio.sleep(1)
        answers = [bodies(answer) for answer in rig.peer.frames if parts_of(answer)]
        assert answers == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]

    on_broker(test)


def test_pop_whose_checkpoint_is_refused_is_answered_with_the_error_and_repeated() -> None:
    async def test(broker: SimulatedBroker, rig: Rig) -> None:
        deletion = broker.commit.begin_deletion("rmq_sys_wheel_timer")
        assert deletion is None, "it has no messages yet"
        limit = broker.commit._pending
        limit._count += 10_000_000
        answer = decode_frame((await rig.pop())[4:])
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert broker.components.popping.in_flight.checkpoint_count == 0
        limit._count -= 10_000_000
        assert len(bodies(await rig.pop())) == 6

    on_broker(test)


def test_messages_for_a_closed_connection_come_back_at_once() -> None:
    async def test(_: SimulatedBroker, rig: Rig) -> None:
        rig.feed(rig.pop_frame({"queueId": "0"}))
        rig.peer.close("gone")
        await asyncio.sleep(0.5)
        rig.peer = Peer(50_001)
        assert len(bodies(await rig.pop())) == 6

    on_broker(test)

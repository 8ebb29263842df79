"""The fast path of pulls has the outcome of the general path, and leaves other pulls to it."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from kourou.broker.clients import Member
from kourou.broker.decline_runs import RUN, SKIPS
from kourou.broker.pulling.fast_pull import FastPull
from kourou.broker.pulling.pull_checks import PullChecks
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.errors import ProtocolError
from kourou.filter.tags import parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode, ResponseCode
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.connection import Connection
from kourou.remoting.limits import ConnectionLimits
from kourou.store.config import StoreConfig
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker, small_config

USUAL: dict[str, object] = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": str(PULL_SUBSCRIPTION | PULL_SUSPEND | PULL_COMMIT_OFFSET),
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
    "maxMsgBytes": "2147483647",
    "bname": "broker-a",
}

HELD: dict[str, str] = {"suspendTimeoutMillis": "1000"}


def frame(fields: Mapping[str, object], *, body: bytes = b"", **members: object) -> bytes:
    """Return a pull as clients write it, with the given fields changed."""
    header: dict[str, object] = {"code": 11, "extFields": {**USUAL, **fields}, "flag": 0}
    header |= {"language": "JAVA", "opaque": 7, "serializeTypeCurrentRPC": "JSON", "version": 513}
    text = json.dumps(header | members, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


class Peer(FakePeer):
    """A connection that records the frames it sends."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        super().__init__()
        self.limits = limits or ConnectionLimits()
        self.on_closed: list[Callable[[Connection], None]] = []
        self.frames: list[bytes] = []

    def send_frames(self, data: bytes) -> None:
        self.frames.append(data)

    send_now = send_frames


def fast_path(broker: SimulatedBroker) -> FastPull:
    return FastPull(
        broker.components.context,
        checks=PullChecks(broker.components.context, broker.tables.filters),
        offsets=broker.offsets,
        held=broker.held_pulls,
        general_path=broker.pulls.serve_again,
    )


def serve_fast(
    broker: SimulatedBroker, data: bytes, peer: Peer | None = None, path: FastPull | None = None
) -> bytes | None:
    """Return the frame of the answer; None if the fast path does not accept the request."""
    peer = peer or Peer()
    buffer = bytearray(b"before" + data + b"behind")
    at = (path or fast_path(broker))(cast(Connection, peer), buffer, 6, len(buffer))
    assert at == (6 + len(data) if peer.frames else 6)
    return peer.frames[0] if peer.frames else None


async def serve(broker: SimulatedBroker, data: bytes) -> bytes | None:
    """Return the frame of the general path's answer; None if there is none."""
    peer = Peer()
    try:
        peer.ask(broker.pulls.on_pull_message, peer.request_of(decode_frame(data[4:])))
    except ProtocolError:
        return b"refused"
    await broker.later.close()
    return encode_frame(peer.sent[0]) if peer.sent else None


def state_of(broker: SimulatedBroker) -> object:
    """Return the state that pulls change: offsets, statistics, groups."""
    gets = [
        (topic, group, [(item.calls, item.messages, item.size_bytes) for item in items])
        for topic, group, items in broker.stats.gets()
    ]
    offsets = [
        (
            broker.offsets.query(group, topic, queue_id),
            broker.offsets.pulled(group, topic, queue_id),
        )
        for group in ("g", "h")
        for topic in ("T", "U")
        for queue_id in range(4)
    ]
    return offsets, gets, broker.stats.store.found, broker.groups.names()


async def fill(broker: SimulatedBroker, dice: random.Random, count: int) -> None:
    """Store messages of various sizes in four queues, some with tags."""
    broker.groups.get_or_create("g")
    for _ in range(count):
        tags = dice.choice(("", "TagA", "TagB"))
        body = b"b" * dice.choice((0, 10, 1000, 5000))
        topic = dice.choice(("T", "T", "T", "U"))
        draft = broker.draft(body, topic=topic, queue_id=dice.randrange(4), tags=tags)
        await broker.store_messages([draft])


def differing(dice: random.Random) -> dict[str, object]:
    """Return random fields, mostly those of a plain pull."""
    choices: dict[str, tuple[object, ...]] = {
        "queueId": ("0", "1", "2", "3", "4", "-1", "x", "00", 1),
        "queueOffset": (*map(str, range(40)), "99", "-1", "", "+1", "1_0", "1.0", " 1", "1e1"),
        "maxMsgNums": ("1", "2", "5", "31", "64", "0", "-1", "100000", "9" * 10, "1.0"),
        "sysFlag": ("0", "1", "2", "4", "5", "6", "7", "15", "x"),
        "commitOffset": ("0", "3", "-1", "5", "9" * 19),
        "subscription": ("*", "", "TagA", "TagA || TagB", "||", None),
        "subVersion": ("0", "1", "9", "1.5"),
        "expressionType": ("TAG", "SQL92", "", None),
        "topic": ("T", "U", "V", "%RETRY%g"),
        "consumerGroup": ("g", "h", "?"),
        "maxMsgBytes": ("1", "x", None),
        "suspendTimeoutMillis": ("0", "x"),
        "liteTopic": ("a", 1, None),
    }
    names = dice.sample(sorted(choices), dice.choice((1, 2, 2, 3)))
    fields = {name: dice.choice(choices[name]) for name in names}
    return {"queueOffset": str(dice.randrange(12))} | fields


def subscribe(broker: SimulatedBroker, text: str = "*", version: int = 1, **options: Any) -> None:
    subscription = parse_tags("T", text, version)
    broker.clients.register_consumer(
        Member("c", FakePeer(1), LanguageCode.JAVA, 513, 0),
        ConsumerData("g", subscriptions=[subscription], **options),
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_pulls_have_the_same_outcome_on_both_paths(seed: int) -> None:
    answers: list[list[bytes | None]] = []
    left: list[object] = []
    fast_count = 0

    def run(*, is_fast: bool) -> Callable[[SimulatedBroker], Coroutine[Any, Any, None]]:
        async def test(broker: SimulatedBroker) -> None:
            nonlocal fast_count
            dice, path = random.Random(seed), fast_path(broker)
            await fill(broker, dice, 60)
            received: list[bytes | None] = []
            for number in range(180):
                if number == 60:
                    subscribe(broker)
                if number == 120:
                    broker.offsets.reset("g", "T", 1, 2)
                data = frame(differing(dice), opaque=number)
                answer = serve_fast(broker, data, path=path) if is_fast else None
                fast_count += answer is not None
                received.append(await serve(broker, data) if answer is None else answer)
            answers.append(received)
            left.append(state_of(broker))

        return test

    # With odd seeds old messages are read from a slave, which the answers suggest.
    rules = ReplicationConfig(slave_read_enable=bool(seed % 2), memory_bytes=100_000)
    for is_fast in (False, True):
        run_with_broker(run(is_fast=is_fast), config=small_config(replication=rules))

    assert answers[0] == answers[1]
    assert left[0] == left[1]
    assert fast_count > 30


def test_a_plain_pull_is_answered_with_the_stored_bytes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"one"), broker.draft(b"two")])
        await broker.store_messages([broker.draft(b"elsewhere", queue_id=1)])
        await broker.store_messages([broker.draft(b"three")])
        broker.groups.get_or_create("g")

        fields = {"queueOffset": "1", "commitOffset": "1"}
        answer = serve_fast(broker, frame(fields, body=b"ignored"))

        assert answer is not None
        assert answer == await serve(broker, frame(fields))
        assert broker.offsets.query("g", "T", 0) == 1
        assert broker.offsets.pulled("g", "T", 0) == 3

    run_with_broker(test)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"queueId": "9"}, "queue"),
        ({"queueId": "x"}, "number"),
        ({"queueOffset": "x"}, "offset"),
        ({"queueOffset": "5", "commitOffset": "5"}, "messages not found"),
        ({"topic": "V"}, "topic"),
        ({"consumerGroup": "new"}, "group"),
        ({"consumerGroup": "CID_RMQ_SYS_x"}, "reserved"),
        ({"subscription": "TagA"}, "selection"),
        ({"subscription": "a > 1", "expressionType": "SQL92"}, "filter"),
        ({"subscription": "x" * 4096}, "size"),
    ],
)
def test_declined_pulls_are_counted_by_reason(fields: dict[str, object], reason: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        path = fast_path(broker)

        assert serve_fast(broker, frame(fields), path=path) is None
        assert serve_fast(broker, frame({}), path=path) is not None
        assert path.declined == {reason: 1}

    run_with_broker(test)


def test_a_run_of_declined_pulls_is_skipped_for_a_while() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        path, peer = fast_path(broker), Peer()

        for _ in range(RUN + SKIPS):
            assert serve_fast(broker, frame({"subscription": "TagA"}), peer, path) is None
        assert path.declined == {"selection": RUN, "skipped": SKIPS}
        assert serve_fast(broker, frame({}), peer, path) is not None

    run_with_broker(test)


@pytest.mark.parametrize(
    "fields",
    [{"commitOffset": "1"}, {"kourouTopicBegin": "x"}, {"kourouTopicBegin": "x", **HELD}],
)
def test_offset_that_is_to_be_verified_is_left_to_the_general_path(fields: dict[str, str]) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"one")])
        broker.groups.get_or_create("g")

        assert serve_fast(broker, frame(fields)) is None
        assert broker.offsets.query("g", "T", 0) is None

    run_with_broker(test)


async def offload(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def test_pull_of_the_current_topic_is_served_and_one_of_a_deleted_topic_is_not() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"deleted")])
        await QueueDeletion(broker.commit, offload).delete("T")
        begin = broker.store.reader.topic_begin("T")
        await broker.store_messages([broker.draft(b"new")])
        broker.groups.get_or_create("g")
        path = fast_path(broker)
        current = frame({"kourouTopicBegin": str(begin)})

        assert serve_fast(broker, current, path=path) == await serve(broker, current)
        assert serve_fast(broker, frame({"kourouTopicBegin": "0"}), path=path) is None
        assert path.declined == {"topic begin": 1}

    run_with_broker(test)


@pytest.mark.parametrize("is_known", [False, True])
def test_held_pull_of_a_deleted_topic_gets_no_message_of_its_successor(*, is_known: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"deleted")])
        broker.groups.get_or_create("g")
        peer, path = Peer(), fast_path(broker)
        begin = {"kourouTopicBegin": "0"} if is_known else {}
        data = frame({"queueOffset": "1", **begin, **HELD})
        buffer = bytearray(data)
        assert path(cast(Connection, peer), buffer, 0, len(buffer)) == len(data)
        assert peer.frames == []

        await QueueDeletion(broker.commit, offload).delete("T")
        await broker.store_messages([broker.draft(b"new 0"), broker.draft(b"new 1")])
        await asyncio.sleep(2)

        (answer,) = [*(decode_frame(one[4:]) for one in peer.frames), *peer.sent]
        assert (answer.code == ResponseCode.TOPIC_NOT_EXIST) is is_known
        assert (b"new 1" in answer.body) is not is_known

    run_with_broker(test)


def test_a_member_is_served_by_its_groups_subscription() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        path = fast_path(broker)
        data = frame({"sysFlag": "2", "subscription": None, "subVersion": "1"})
        newer = frame({"sysFlag": "2", "subVersion": "2"})

        assert serve_fast(broker, data, path=path) is None
        subscribe(broker)
        assert serve_fast(broker, data, path=path) == await serve(broker, data)
        assert serve_fast(broker, newer, path=path) is None
        broker.groups.set_read_forbidden("g", "T", is_forbidden=True)
        assert serve_fast(broker, data, path=path) is None
        broker.groups.set_read_forbidden("g", "T", is_forbidden=False)
        assert serve_fast(broker, data, path=path) == await serve(broker, data)
        subscribe(broker, "TagA", 2)
        assert serve_fast(broker, data, path=path) is None
        assert path.declined == {"subscription": 2, "group": 1, "selection": 1}

    run_with_broker(test)


def test_a_change_takes_effect_with_the_next_pull() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        data, path = frame({}), fast_path(broker)
        assert serve_fast(broker, data, path=path) is not None

        broker.topics.put(TopicConfig("T", 4, 4, perm=PERM_WRITE))
        assert serve_fast(broker, data, path=path) is None
        broker.topics.put(TopicConfig("T", 4, 4, topic_sys_flag=2))
        assert serve_fast(broker, data, path=path) == await serve(broker, data)
        broker.groups.put(SubscriptionGroup("g", consume_enable=False))
        assert serve_fast(broker, data, path=path) is None
        broker.groups.put(SubscriptionGroup("g", group_sys_flag=1))
        assert serve_fast(broker, data, path=path) == await serve(broker, data)
        broker.offsets.reset("g", "T", 0, 0)
        assert serve_fast(broker, data, path=path) is None
        broker.offsets.take_reset("g", "T", 0)
        broker.live_config.update({"brokerPermission": "2"}, 1)
        assert serve_fast(broker, data, path=path) is None
        assert path.declined == {"topic": 1, "group": 1, "offset reset": 1, "broker": 1}

    run_with_broker(test)


def test_a_broadcasting_group_is_refused_by_the_general_path() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.put(SubscriptionGroup("g", consume_broadcast_enable=False))
        subscribe(broker, message_model=MessageModel.BROADCASTING)

        assert serve_fast(broker, frame({"sysFlag": "2", "subVersion": "1"})) is None

    run_with_broker(test)


def test_records_of_another_process_are_verified() -> None:
    async def write(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])

    async def read(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        await broker.store_messages([broker.draft()])
        found = serve_fast(broker, frame({}))
        assert found is not None
        messages = decode_messages(decode_frame(found[4:]).body)
        assert [message.queue_offset for message in messages] == [0, 1]

    run_with_broker(read, run_with_broker(write))


def test_a_damaged_record_of_another_process_is_always_left_to_the_general_path() -> None:
    async def write(broker: SimulatedBroker) -> None:
        for number in range(8):
            await broker.store_messages([broker.draft(b"body-%d" % number)])

    async def read(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        for _ in range(3):
            assert serve_fast(broker, frame({})) is None
            before = serve_fast(broker, frame({"maxMsgNums": "5"}))
            assert before is not None
            assert len(decode_messages(decode_frame(before[4:]).body)) == 5
            assert serve_fast(broker, frame({"queueOffset": "6"})) is not None
        disk.write(name, at, [b"b"])
        assert serve_fast(broker, frame({})) is not None

    disk = run_with_broker(write)
    name = f"commitlog/{disk.list('commitlog')[0]}"
    at = disk.read(name, 0, disk.size(name)).index(b"body-5")
    disk.write(name, at, [b"X"])
    run_with_broker(read, disk)


def test_records_that_are_not_in_memory_are_read_by_a_thread() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")

        assert serve_fast(broker, frame({})) is None

    run_with_broker(test, ColdDisk())


def test_limits_on_old_messages_are_enforced_by_the_general_path() -> None:
    config = small_config(
        store=StoreConfig(
            commitlog_segment_bytes=1 << 20, resident_bytes=1, cold_get_messages_max=1
        )
    )

    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(), broker.draft()])
        broker.groups.get_or_create("g")

        assert serve_fast(broker, frame({})) is None

    run_with_broker(test, config=config)


@pytest.mark.parametrize(
    "data",
    [
        frame({}, code=361),
        frame({}, flag=2),
        frame({}, flag=1),
        frame({}, opaque=2**31),
        frame({}, opaque="7"),
        frame({}, version="x"),
        frame({"queueOffset": 0}),
        frame({"topic": None}),
        frame({"consumerGroup": "new"}),
        frame({"subscription": "x" * 4096}),
        frame({})[:-1],
        b'\0\0\0\x06\0\0\0\x00{"code":11,',
        frame({}).replace(b"\0\0", b"\1\0", 1),
        frame({}, code=310),
    ],
)  # fmt: skip
def test_an_unusual_frame_is_left_to_the_general_path(data: bytes) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        peer, buffer = Peer(), bytearray(data)
        before = state_of(broker)

        assert fast_path(broker)(cast(Connection, peer), buffer, 0, len(buffer)) == 0
        assert (peer.frames, state_of(broker)) == ([], before)

    run_with_broker(test)


def test_a_frame_above_the_connections_limit_is_left_to_the_general_path() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        data = frame({})
        size = len(data) - 4

        assert serve_fast(broker, data, Peer(ConnectionLimits(frame_bytes_max=size - 1))) is None
        assert serve_fast(broker, data, Peer(ConnectionLimits(frame_bytes_max=size))) is not None

    run_with_broker(test)


def test_a_peer_with_too_many_unanswered_requests_is_left_to_the_general_path() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        broker.groups.get_or_create("g")
        peer = Peer()
        peer.unanswered.add_all(0, peer.limits.unanswered_requests_max)

        assert serve_fast(broker, frame({}), peer) is None

    run_with_broker(test)

"""Assignment of queues by the broker, and the modes of groups (pull or pop)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.consuming.assignment_handlers import (
    STRATEGIES,
    AssignmentHandlers,
    assign,
)
from kourou.broker.consuming.assignment_modes import FILE_NAME, RequestModes
from kourou.broker.consuming.assignment_routes import AssignmentRoutes
from kourou.errors import SystemBusyError
from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.queue_assignment import (
    MessageRequestMode,
    QueryAssignment,
    SetMessageRequestMode,
    decode_assignments,
    decode_message_request_modes,
    encode_message_request_mode,
    encode_query_assignment,
)
from kourou.remoting.steady_time import steady_ms
from kourou.store.state.config_file import ConfigFile
from kourou.testing.disk import SimDisk
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]
MEMBER = "127.0.0.1@i-golden_push_pop"
GROUP = "golden_push_pop"


def handlers(broker: SimulatedBroker) -> AssignmentHandlers:
    context = replace(
        broker.components.context, config=replace(broker.config, broker_name="broker-a")
    )
    routes = AssignmentRoutes((), "broker-a", broker.topics, None, steady_ms)  # type: ignore[arg-type]
    return AssignmentHandlers(context, broker.tables.modes, routes, broker.components.ids_notifier)


async def ask(broker: SimulatedBroker, recorded: RemotingCommand) -> RemotingCommand:
    served = handlers(broker)
    handler = {
        RequestCode.QUERY_ASSIGNMENT: served.on_query_assignment,
        RequestCode.SET_MESSAGE_REQUEST_MODE: served.on_set_message_request_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: served.on_get_all_message_request_mode,
    }[RequestCode(recorded.code)]
    peer = FakePeer()
    answer = peer.ask(handler, peer.request_of(recorded))
    await broker.later.close()
    return answer if answer is not None else peer.sent[0]


async def set_mode(broker: SimulatedBroker, mode: SetMessageRequestMode) -> RemotingCommand:
    return await broker.ask(
        handlers(broker).on_set_message_request_mode, body=encode_message_request_mode(mode)
    )


async def assigned(broker: SimulatedBroker, asked: QueryAssignment) -> list[tuple[int, str]] | None:
    """Return queue ids and modes; None if the answer has no assignments."""
    answer = await broker.ask(
        handlers(broker).on_query_assignment, body=encode_query_assignment(asked)
    )
    found = decode_assignments(answer.body).message_queue_assignments
    return (
        None if found is None else [(one.message_queue.queue_id, one.mode.value) for one in found]
    )


def asking(topic: str = "T", client_id: str = "a", strategy: str = "AVG") -> QueryAssignment:
    return QueryAssignment(topic, "g", client_id, strategy)


@pytest.mark.parametrize(
    "name",
    [
        "400_QUERY_ASSIGNMENT_pop-query-assignment-broadcast",
        "400_QUERY_ASSIGNMENT_pop-query-assignment-unknown-topic",
        "400_QUERY_ASSIGNMENT_push-pop",
        "400_QUERY_ASSIGNMENT_push-pop_2",
        "401_SET_MESSAGE_REQUEST_MODE_admin-setConsumeMode",
        "401_SET_MESSAGE_REQUEST_MODE_pop-set-request-mode-pull",
        "401_SET_MESSAGE_REQUEST_MODE_pop-set-request-mode-retry-topic_rc16",
        "401_SET_MESSAGE_REQUEST_MODE_pop-set-request-mode-unknown-topic_rc17",
        "402_GET_ALL_MESSAGE_REQUEST_MODE_raw-all-message-request-mode",
    ],
)
def test_requests_are_answered_as_by_java(golden: Golden, name: str) -> None:
    recorded, expected = golden(name)
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("GoldenPop", 2, 2))
        broker.topics.put(TopicConfig(f"%RETRY%{GROUP}", 1, 1))
        broker.connect(MEMBER, GROUP)
        for mode in (
            SetMessageRequestMode("GoldenPop", GROUP, MessageRequestMode.POP, 8),
            SetMessageRequestMode("GoldenPop", "golden_mode", MessageRequestMode.PULL, 0),
        ):
            broker.tables.modes.put(mode)
        answer = await ask(broker, recorded)

        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert json.loads(answer.body or b"0") == json.loads(expected.body or b"0")

    run_with_broker(test)


def test_a_group_without_members_gets_no_assignments(golden: Golden) -> None:
    recorded, expected = golden("400_QUERY_ASSIGNMENT_pop-query-assignment-pop")
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("GoldenPop", 2, 2))
        assert (await ask(broker, recorded)).body == expected.body == b"{}"

    run_with_broker(test)


def test_members_share_the_queues_by_their_strategy() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.connect("b")
        broker.connect("a")
        pull = MessageRequestMode.PULL.value
        assert await assigned(broker, asking()) == [(0, pull), (1, pull)]
        assert await assigned(broker, asking(client_id="b")) == [(2, pull), (3, pull)]
        circle = asking(strategy="AVG_BY_CIRCLE")
        assert await assigned(broker, circle) == [(0, pull), (2, pull)]
        assert await assigned(broker, asking(client_id="stranger")) == []
        assert await assigned(broker, asking(strategy="CONSISTENT_HASH")) is None
        assert await assigned(broker, asking(topic="absent")) is None
        everybody = replace(asking(), message_model=MessageModel.BROADCASTING)
        assert len(await assigned(broker, everybody) or ()) == 4

    run_with_broker(test)


def test_popping_members_also_get_the_shares_of_the_next_members() -> None:
    all_queues = [MessageQueue("T", "a", number) for number in range(4)]
    mode = SetMessageRequestMode("T", "g", MessageRequestMode.POP, 1)
    shares = {
        member: [
            queue.queue_id for queue in assign(all_queues, "abc", member, STRATEGIES["AVG"], mode)
        ]
        for member in "abc"
    }
    assert shares == {"a": [0, 1, 2], "b": [2, 3], "c": [0, 1, 3]}


def test_a_topic_without_readable_queues_gets_no_assignments() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4, perm=2))
        broker.connect("a")
        assert await assigned(broker, asking()) is None

    run_with_broker(test)


def test_all_queues_are_assigned_to_every_member_with_the_balancer_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.live_config.update({"serverLoadBalancerEnable": "false"}, 0)
        found = await assigned(broker, asking(strategy="unknown"))
        assert [queue_id for queue_id, _ in found or ()] == [0, 1, 2, 3]

    run_with_broker(test)


def test_groups_without_a_mode_get_the_brokers_default() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.topics.put(TopicConfig("%RETRY%g", 1, 1))
        broker.connect("a")
        broker.live_config.update({"defaultMessageRequestMode": "POP"}, 0)
        assert await assigned(broker, asking()) == [(-1, "POP")]
        assert await assigned(broker, asking(topic="%RETRY%g")) == [(0, "PULL")]
        await set_mode(broker, SetMessageRequestMode("T", "g"))
        assert [mode for _, mode in await assigned(broker, asking()) or ()] == ["PULL"] * 4

    run_with_broker(test)


def test_an_acknowledged_mode_survives_a_kill() -> None:
    mode = SetMessageRequestMode("T", "g", MessageRequestMode.POP, 3)

    async def first(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        assert (await set_mode(broker, mode)).code == 0
        # The file has every mode that was acknowledged.
        text = ConfigFile(broker.disk, FILE_NAME).load()
        assert text is not None
        assert decode_message_request_modes(text).message_request_mode_map == {"T": {"g": mode}}

    async def again(broker: SimulatedBroker) -> None:
        assert broker.tables.modes.get("T", "g") == mode
        assert broker.tables.modes.get("T", "other") is None

    run_with_broker(again, disk=run_with_broker(first))


def test_modes_of_missing_and_retry_topics_are_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        for topic, code in (("%RETRY%g", 16), ("absent", 17)):
            body = encode_message_request_mode(SetMessageRequestMode(topic, "g"))
            answer = peer.ask(
                handlers(broker).on_set_message_request_mode, peer.request(401, None, body)
            )
            assert answer is not None
            assert answer.code == code
        assert broker.tables.modes.body() == b'{"messageRequestModeMap":{}}'

    run_with_broker(test)


def test_the_number_of_modes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kourou.broker.consuming.assignment_modes.MODES_MAX", 2)

    async def test(broker: SimulatedBroker) -> None:
        modes = RequestModes(ConfigFile(SimDisk(), FILE_NAME), broker.runtime.offload)
        for group in ("a", "b", "b"):
            modes.put(SetMessageRequestMode("T", group))
        with pytest.raises(SystemBusyError, match="2 modes are set"):
            modes.put(SetMessageRequestMode("T", "c"))
        modes.put(SetMessageRequestMode("T", "a", MessageRequestMode.POP))

    run_with_broker(test)


queues = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from("ab"), st.integers(0, 9)),
    unique=True,
    min_size=1,
).map(sorted)
ids = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1).map(sorted)


@given(queues, ids, st.sampled_from(sorted(STRATEGIES)), st.integers(-1, 12))
def test_every_queue_is_assigned_in_every_mode(
    all_queues: list[MessageQueue], members: list[str], strategy: str, share: int
) -> None:
    for kind in MessageRequestMode:
        mode = SetMessageRequestMode("T", "g", kind, share)
        shares = [assign(all_queues, members, one, STRATEGIES[strategy], mode) for one in members]
        read = {queue for one in shares for queue in one}
        brokers = {queue.broker_name for queue in read if queue.queue_id == -1}
        is_one_each = len(members) > len(all_queues)
        assert all(queue in read or queue.broker_name in brokers for queue in all_queues)
        if kind is MessageRequestMode.PULL:
            assert sum(map(len, shares)) == len(all_queues)
        elif 0 < share < len(members) - 1:
            assert all(len(one) == 1 for one in shares) or not is_one_each


def test_a_malformed_body_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for body in (b"", b"{}", b'{"topic":"T"}', b'{"topic":1,"consumerGroup":"g"}'):
            for code, handler in (
                (400, handlers(broker).on_query_assignment),
                (401, handlers(broker).on_set_message_request_mode),
            ):
                peer = FakePeer()
                answer = peer.ask(handler, peer.request(code, None, body))
                assert answer is not None
                assert answer.code != 0

    run_with_broker(test)

"""Groups are administered as in Java, and an answered change is durable."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.consuming.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.model.group import SubscriptionGroup
from kourou.protocol.command import RemotingCommand
from kourou.protocol.groups import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GroupForbidden,
    UpdateGroupForbiddenRequestHeader,
    decode_group_forbidden,
    decode_subscription_group,
    decode_subscription_group_table,
    encode_subscription_group,
)
from kourou.remoting.dispatch import Handler
from kourou.testing.clock import EPOCH_MS
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

VERSION = f'{{"counter":3,"stateVersion":0,"timestamp":{EPOCH_MS}}}'
OLD_VERSION = VERSION.replace("3", "2", 1)

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `test` on a broker, as `run_with_broker` does."""
    run_with_broker(test, config=small_config(**options))


async def ask(
    broker: SimulatedBroker, handler: Handler, header: object | None = None, body: bytes = b""
) -> RemotingCommand:
    """Return the answer, even if it comes in a later turn of the loop."""
    peer = FakePeer()
    peer.ask(handler, peer.request(0, header, body))
    await broker.later.close()
    return peer.sent[0]


async def update(broker: SimulatedBroker, group: SubscriptionGroup) -> RemotingCommand:
    handler = broker.admin.groups.on_update_and_create_subscription_group
    return await ask(broker, handler, body=encode_subscription_group(group))


def test_an_acknowledged_group_survives_a_crash() -> None:
    made = SubscriptionGroup("g", retry_max_times=3, consume_message_orderly=True)

    async def test(broker: SimulatedBroker) -> None:
        answer = await update(broker, made)

        assert (answer.code, answer.remark) == (0, None)
        text = broker.disk.read(GROUPS_FILE, 0, broker.disk.size(GROUPS_FILE))
        assert decode_subscription_group_table(text).groups["g"] == made

    run(test)


def test_a_change_that_cannot_be_saved_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.fail_after(0, OSError(28, "No space left on device"))
        answer = await update(broker, SubscriptionGroup("g"))
        assert answer.code == 1
        assert "No space" in (answer.remark or "")

    run(test)


@pytest.mark.parametrize(
    ("group", "code"),
    [
        (SubscriptionGroup("bad group!"), 29),
        (SubscriptionGroup("g" * 121), 29),
        (SubscriptionGroup("g", retry_queue_nums=-1), 29),
        (SubscriptionGroup("g", retry_queue_nums=1_000_000), 29),
        (SubscriptionGroup("g", attributes={"+priority.factor": "101"}), 1),
        (SubscriptionGroup("g", attributes={"priority.factor": "1"}), 1),
        (SubscriptionGroup("g", attributes={"-priority.factor": ""}), 1),
        (SubscriptionGroup("g", attributes={"+lite.bind.topic": "T"}), 1),
    ],
)
def test_an_invalid_group_is_refused(group: SubscriptionGroup, code: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        answer = await update(broker, group)
        assert answer.code == code
        assert answer.remark
        assert len(broker.groups) == 1

    run(test)


def test_attributes_that_a_change_does_not_name_are_kept() -> None:
    async def test(broker: SimulatedBroker) -> None:
        factor = SubscriptionGroup("g", attributes={"+priority.factor": "20"})
        assert (await update(broker, factor)).code == 0
        assert (await update(broker, SubscriptionGroup("g", retry_max_times=3))).code == 0
        group = broker.groups.get("g")
        assert group is not None
        assert (group.retry_max_times, group.attributes) == (3, {"priority.factor": "20"})
        assert (
            await update(broker, SubscriptionGroup("g", attributes={"-priority.factor": ""}))
        ).code == 0
        assert group != broker.groups.get("g")
        assert broker.groups.get("g") == SubscriptionGroup("g")

    run(test)


def test_a_malformed_group_is_refused(golden: Golden) -> None:
    recorded, expected = golden(
        "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_raw-create-group-invalid_rc29"
    )
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        handler = broker.admin.groups.on_update_and_create_subscription_group
        assert (await ask(broker, handler, body=recorded.body)).code == expected.code
        assert (await ask(broker, handler, body=b"{}")).code == 1
        assert (await ask(broker, handler)).code == 1

    run(test)


def test_deleting_a_group_removes_its_offsets_if_requested() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for name in ("g", "h"):
            await update(broker, SubscriptionGroup(name))
            broker.offsets.commit(name, "T", 0, 1)
        delete = broker.admin.groups.on_delete_subscription_group

        for header in (
            DeleteSubscriptionGroupRequestHeader("g", clean_offset=True),
            DeleteSubscriptionGroupRequestHeader("h"),
            DeleteSubscriptionGroupRequestHeader("unknown"),
        ):
            assert (await ask(broker, delete, header)).code == 0

        assert broker.groups.get("g") is broker.groups.get("h") is None
        assert broker.offsets.topics_of("g") == []
        assert broker.offsets.topics_of("h") == ["T"]
        assert b"T@g" not in broker.disk.read(OFFSETS_FILE, 0, broker.disk.size(OFFSETS_FILE))

    run(test)


def test_reading_a_group_creates_it_if_groups_are_created_automatically(golden: Golden) -> None:
    _, expected = golden("352_GET_SUBSCRIPTIONGROUP_CONFIG_raw-group-config")
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        await update(broker, SubscriptionGroup("golden_group", retry_max_times=5))
        read = broker.admin.groups.on_get_subscription_group_config

        answer = await ask(broker, read, GetSubscriptionGroupConfigRequestHeader("golden_group"))
        assert answer.body == expected.body
        answer = await ask(broker, read, GetSubscriptionGroupConfigRequestHeader("new"))
        assert decode_subscription_group(answer.body) == SubscriptionGroup("new")
        assert broker.groups.get("new") is not None
        answer = await ask(broker, read, GetSubscriptionGroupConfigRequestHeader("bad group!"))
        assert answer.code == 26

    run(test)


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (GetAllSubscriptionGroupRequestHeader(), ["TOOLS_CONSUMER", "a", "b", "c"]),
        (GetAllSubscriptionGroupRequestHeader(0, None, 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(2, VERSION, 2), ["b", "c"]),
        (GetAllSubscriptionGroupRequestHeader(3, VERSION), ["c"]),
        (GetAllSubscriptionGroupRequestHeader(9, VERSION, 2), []),
        (GetAllSubscriptionGroupRequestHeader(2, "", 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(2, OLD_VERSION, 2), ["TOOLS_CONSUMER", "a"]),
        (GetAllSubscriptionGroupRequestHeader(-1, None, -1), []),
    ],
)
def test_groups_are_listed_in_one_answer_or_in_pages(
    header: GetAllSubscriptionGroupRequestHeader, names: list[str]
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for name in ("c", "a", "b"):
            broker.groups.put(SubscriptionGroup(name))

        answer = await ask(broker, broker.admin.groups.on_get_all_subscription_group_config, header)

        assert answer.ext_fields == {"totalGroupNum": "4"}
        table = decode_subscription_group_table(answer.body)
        assert sorted(table.groups) == names
        assert table.data_version.counter == 3

    run(test)


async def forbid(broker: SimulatedBroker, *, readable: bool | None) -> RemotingCommand:
    header = UpdateGroupForbiddenRequestHeader("g", "T", readable)
    return await ask(broker, broker.admin.groups.on_update_and_get_group_forbidden, header)


def test_a_group_can_be_forbidden_to_read_a_topic_and_allowed_again() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for readable, holds in ((None, True), (False, False), (None, False), (True, True)):
            answer = await forbid(broker, readable=readable)
            assert answer.code == 0
            assert decode_group_forbidden(answer.body) == GroupForbidden("g", "T", holds)
            assert broker.groups.is_read_forbidden("g", "T") is not holds
            if readable is not None:
                text = broker.disk.read(GROUPS_FILE, 0, broker.disk.size(GROUPS_FILE))
                saved = decode_subscription_group_table(text).forbidden
                assert saved == ({} if holds else {"g": {"T": 4}})

    run(test)


def test_a_read_ban_with_an_invalid_name_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        handler = broker.admin.groups.on_update_and_get_group_forbidden
        for group, topic in (("bad group", "T"), ("g", "bad topic")):
            header = UpdateGroupForbiddenRequestHeader(group, topic, readable=False)
            assert (await ask(broker, handler, header)).code == 29

    run(test)


def test_a_list_of_groups_is_created_completely_or_not_at_all() -> None:
    async def test(broker: SimulatedBroker) -> None:
        handler = broker.admin.groups.on_update_and_create_subscription_group_list
        good = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b","retryMaxTimes":3}]}'
        assert (await ask(broker, handler, body=good)).code == 0
        text = broker.disk.read(GROUPS_FILE, 0, broker.disk.size(GROUPS_FILE))
        made = decode_subscription_group_table(text).groups
        assert made["a"] == SubscriptionGroup("a")
        assert made["b"] == SubscriptionGroup("b", retry_max_times=3)

        bad = b'{"groupConfigList":[{"groupName":"c"},{"groupName":"no good"}]}'
        assert (await ask(broker, handler, body=bad)).code == 29
        assert broker.groups.get("c") is None

    run(test)

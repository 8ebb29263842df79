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
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.clock import EPOCH_MS
from kourou.testing.peers import FakePeer

VERSION = f'{{"counter":3,"stateVersion":0,"timestamp":{EPOCH_MS}}}'
OLD_VERSION = VERSION.replace("3", "2", 1)

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(test: Callable[[BrokerParts], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `test` with the parts of a broker, as `run_with_parts` does."""
    run_with_parts(test, config=small_config(**options))


async def ask(
    parts: BrokerParts, handler: Handler, header: object | None = None, body: bytes = b""
) -> RemotingCommand:
    """Return the answer, even if it comes in a later turn of the loop."""
    peer = FakePeer()
    peer.ask(handler, peer.request(0, header, body))
    await parts.later.close()
    return peer.sent[0]


async def update(parts: BrokerParts, group: SubscriptionGroup) -> RemotingCommand:
    handler = parts.admin.groups.on_update_and_create_subscription_group
    return await ask(parts, handler, body=encode_subscription_group(group))


def test_an_acknowledged_group_survives_a_crash() -> None:
    made = SubscriptionGroup("g", retry_max_times=3, consume_message_orderly=True)

    async def test(parts: BrokerParts) -> None:
        answer = await update(parts, made)

        assert (answer.code, answer.remark) == (0, None)
        text = parts.disk.read(GROUPS_FILE, 0, parts.disk.size(GROUPS_FILE))
        assert decode_subscription_group_table(text).groups["g"] == made

    run(test)


def test_a_change_that_cannot_be_saved_is_reported() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.fail_after(0, OSError(28, "No space left on device"))
        answer = await update(parts, SubscriptionGroup("g"))
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
    async def test(parts: BrokerParts) -> None:
        answer = await update(parts, group)
        assert answer.code == code
        assert answer.remark
        assert len(parts.groups) == 1

    run(test)


def test_attributes_that_a_change_does_not_name_are_kept() -> None:
    async def test(parts: BrokerParts) -> None:
        factor = SubscriptionGroup("g", attributes={"+priority.factor": "20"})
        assert (await update(parts, factor)).code == 0
        assert (await update(parts, SubscriptionGroup("g", retry_max_times=3))).code == 0
        group = parts.groups.get("g")
        assert group is not None
        assert (group.retry_max_times, group.attributes) == (3, {"priority.factor": "20"})
        assert (
            await update(parts, SubscriptionGroup("g", attributes={"-priority.factor": ""}))
        ).code == 0
        assert group != parts.groups.get("g")
        assert parts.groups.get("g") == SubscriptionGroup("g")

    run(test)


def test_a_malformed_group_is_refused(golden: Golden) -> None:
    recorded, expected = golden(
        "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_raw-create-group-invalid_rc29"
    )
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        handler = parts.admin.groups.on_update_and_create_subscription_group
        assert (await ask(parts, handler, body=recorded.body)).code == expected.code
        assert (await ask(parts, handler, body=b"{}")).code == 1
        assert (await ask(parts, handler)).code == 1

    run(test)


def test_deleting_a_group_removes_its_offsets_if_requested() -> None:
    async def test(parts: BrokerParts) -> None:
        for name in ("g", "h"):
            await update(parts, SubscriptionGroup(name))
            parts.offsets.commit(name, "T", 0, 1)
        delete = parts.admin.groups.on_delete_subscription_group

        for header in (
            DeleteSubscriptionGroupRequestHeader("g", clean_offset=True),
            DeleteSubscriptionGroupRequestHeader("h"),
            DeleteSubscriptionGroupRequestHeader("unknown"),
        ):
            assert (await ask(parts, delete, header)).code == 0

        assert parts.groups.get("g") is parts.groups.get("h") is None
        assert parts.offsets.topics_of("g") == []
        assert parts.offsets.topics_of("h") == ["T"]
        assert b"T@g" not in parts.disk.read(OFFSETS_FILE, 0, parts.disk.size(OFFSETS_FILE))

    run(test)


def test_reading_a_group_creates_it_if_groups_are_created_automatically(golden: Golden) -> None:
    _, expected = golden("352_GET_SUBSCRIPTIONGROUP_CONFIG_raw-group-config")
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        await update(parts, SubscriptionGroup("golden_group", retry_max_times=5))
        read = parts.admin.groups.on_get_subscription_group_config

        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("golden_group"))
        assert answer.body == expected.body
        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("new"))
        assert decode_subscription_group(answer.body) == SubscriptionGroup("new")
        assert parts.groups.get("new") is not None
        answer = await ask(parts, read, GetSubscriptionGroupConfigRequestHeader("bad group!"))
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
    async def test(parts: BrokerParts) -> None:
        for name in ("c", "a", "b"):
            parts.groups.put(SubscriptionGroup(name))

        answer = await ask(parts, parts.admin.groups.on_get_all_subscription_group_config, header)

        assert answer.ext_fields == {"totalGroupNum": "4"}
        table = decode_subscription_group_table(answer.body)
        assert sorted(table.groups) == names
        assert table.data_version.counter == 3

    run(test)


async def forbid(parts: BrokerParts, *, readable: bool | None) -> RemotingCommand:
    header = UpdateGroupForbiddenRequestHeader("g", "T", readable)
    return await ask(parts, parts.admin.groups.on_update_and_get_group_forbidden, header)


def test_a_group_can_be_forbidden_to_read_a_topic_and_allowed_again() -> None:
    async def test(parts: BrokerParts) -> None:
        for readable, holds in ((None, True), (False, False), (None, False), (True, True)):
            answer = await forbid(parts, readable=readable)
            assert answer.code == 0
            assert decode_group_forbidden(answer.body) == GroupForbidden("g", "T", holds)
            assert parts.groups.is_read_forbidden("g", "T") is not holds
            if readable is not None:
                text = parts.disk.read(GROUPS_FILE, 0, parts.disk.size(GROUPS_FILE))
                saved = decode_subscription_group_table(text).forbidden
                assert saved == ({} if holds else {"g": {"T": 4}})

    run(test)


def test_a_read_ban_with_an_invalid_name_is_refused() -> None:
    async def test(parts: BrokerParts) -> None:
        handler = parts.admin.groups.on_update_and_get_group_forbidden
        for group, topic in (("bad group", "T"), ("g", "bad topic")):
            header = UpdateGroupForbiddenRequestHeader(group, topic, readable=False)
            assert (await ask(parts, handler, header)).code == 29

    run(test)


def test_a_list_of_groups_is_created_completely_or_not_at_all() -> None:
    async def test(parts: BrokerParts) -> None:
        handler = parts.admin.groups.on_update_and_create_subscription_group_list
        good = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b","retryMaxTimes":3}]}'
        assert (await ask(parts, handler, body=good)).code == 0
        text = parts.disk.read(GROUPS_FILE, 0, parts.disk.size(GROUPS_FILE))
        made = decode_subscription_group_table(text).groups
        assert made["a"] == SubscriptionGroup("a")
        assert made["b"] == SubscriptionGroup("b", retry_max_times=3)

        bad = b'{"groupConfigList":[{"groupName":"c"},{"groupName":"no good"}]}'
        assert (await ask(parts, handler, body=bad)).code == 29
        assert parts.groups.get("c") is None

    run(test)

"""Answers to recorded requests of pop consumers: code, remark and header fields as Java's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.command import RemotingCommand
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import PopRig

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

REFUSED = [
    "200050_POP_MESSAGE_json-client-raw-binary-pop-wraps-code_rc17",
    "200050_POP_MESSAGE_pop-bad-sql_rc23",
    "200050_POP_MESSAGE_pop-group-disabled_rc16",
    "200050_POP_MESSAGE_pop-max-33_rc29",
    "200050_POP_MESSAGE_pop-unknown-topic_rc17",
    "200050_POP_MESSAGE_pop-writeonly-topic_rc16",
    "200051_ACK_MESSAGE_pop-ack-offset-negative_rc208",
    "200051_ACK_MESSAGE_pop-ack-offset-too-big_rc208",
    "200051_ACK_MESSAGE_pop-ack-unknown-topic_rc17",
    "200052_PEEK_MESSAGE_pop-peek-unknown-topic_rc17",
    "200053_CHANGE_MESSAGE_INVISIBLETIME_pop-change-invisible-unknown-topic_rc17",
    "200054_NOTIFICATION_pop-notification-unknown-topic_rc17",
    "200151_BATCH_ACK_MESSAGE_pop-batch-ack-empty_rc208",
    "200151_BATCH_ACK_MESSAGE_pop-batch-ack-no-body_rc208",
]
ANSWERED = [
    "200051_ACK_MESSAGE_pop-ack-ok",
    "200051_ACK_MESSAGE_pop-ack-other-broker",
    "200051_ACK_MESSAGE_pop-ack-stale-after-change",
    "200054_NOTIFICATION_pop-notification-has",
    "200055_POLLING_INFO_pop-polling-info-none",
    "200151_BATCH_ACK_MESSAGE_pop-batch-ack-json",
    "200151_BATCH_ACK_MESSAGE_pop-batch-ack-official-client",
]


async def prepare(broker: SimulatedBroker) -> None:
    """Create the topics and groups of the recorded requests."""
    broker.topics.put(TopicConfig("GoldenPopRaw", 1, 1))
    broker.topics.put(TopicConfig("GoldenWriteOnly", 1, 1, PERM_WRITE))
    for group in ("golden_pop", "golden_pop_peek"):
        broker.groups.put(SubscriptionGroup(group))
    broker.groups.put(SubscriptionGroup("golden_disabled", consume_enable=False))
    for number in range(14):
        await broker.store_messages([broker.draft(b"pop body %d" % number, topic="GoldenPopRaw")])


def golden_config() -> object:
    return small_config(broker_name="broker-a", advertise="127.0.0.1:10911")


async def ask(broker: SimulatedBroker, recorded: RemotingCommand) -> RemotingCommand:
    rig = PopRig(broker)
    if "bornTime" in recorded.ext_fields:
        recorded = replace(
            recorded,
            ext_fields=recorded.ext_fields
            | {"bornTime": str(broker.clock.now_ms()), "pollTime": "0"},
        )
    answer: RemotingCommand = await rig.send_command(recorded)
    return answer


def run(test: Callable[[SimulatedBroker], object]) -> None:
    async def main(broker: SimulatedBroker) -> None:
        await prepare(broker)
        await test(broker)  # type: ignore[misc]

    run_with_broker(main, config=golden_config(), is_delivering=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*REFUSED, *ANSWERED])
def test_answer_equals_that_of_java(name: str, golden: Golden) -> None:
    async def test(broker: SimulatedBroker) -> None:
        recorded, expected = golden(name)
        assert expected is not None
        answer = await ask(broker, recorded)
        assert answer.code == expected.code
        # Java gives no reason with 208 in some places.
        assert answer.remark == expected.remark or (expected.remark is None and answer.code == 208)
        assert answer.ext_fields == expected.ext_fields
        assert answer.body == expected.body

    if name.endswith("topic_rc17") or "raw-binary" in name:
        run_without_topics(test)
    else:
        run(test)


def run_without_topics(test: Callable[[SimulatedBroker], object]) -> None:
    run_with_broker(test, config=golden_config(), is_delivering=True)  # type: ignore[arg-type]


def test_queue_that_does_not_exist_is_refused_with_the_text_of_java(golden: Golden) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for name in (
            "200050_POP_MESSAGE_pop-queue-out-of-range_rc29",
            "200051_ACK_MESSAGE_pop-ack-bad-queue_rc13",
        ):
            recorded, expected = golden(name)
            assert expected is not None
            answer = await ask(broker, recorded)
            text = (expected.remark or "").replace("127.0.0.1:33998", "10.0.0.9:50000")
            assert (answer.code, answer.remark) == (expected.code, text)

    run(test)


def test_late_pop_is_refused_as_by_java(golden: Golden) -> None:
    async def test(broker: SimulatedBroker) -> None:
        recorded, expected = golden("200050_POP_MESSAGE_pop-born-too-long-ago_rc210")
        assert expected is not None
        answer: RemotingCommand = await PopRig(broker).send_command(recorded)
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields

    run_later(test)


def run_later(test: Callable[[SimulatedBroker], object]) -> None:
    later_ms = 1_795_228_492_568 + 60_000 - 1_700_000_000_000

    async def main(broker: SimulatedBroker) -> None:
        await prepare(broker)
        await test(broker)  # type: ignore[misc]

    run_with_broker(main, config=golden_config(), later_ms=later_ms, is_delivering=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["200050_POP_MESSAGE_pop-found-queue-minus-one", "200050_POP_MESSAGE_pop-init-max"],
)
def test_header_of_found_messages_equals_that_of_java(name: str, golden: Golden) -> None:
    async def test(broker: SimulatedBroker) -> None:
        recorded, expected = golden(name)
        assert expected is not None
        answer = await ask(broker, recorded)
        fields = {"popTime", "reviveQid"}
        assert answer.ext_fields.keys() == expected.ext_fields.keys()
        for field in expected.ext_fields.keys() - fields:
            assert answer.ext_fields[field] == expected.ext_fields[field], field
        assert (answer.code, answer.remark) == (0, "FOUND")

    run(test)

"""Unsettled messages: those that are visible again count no longer, and take no memory."""

from __future__ import annotations

from kourou.client.consuming.popping.unsettled import UnsettledMessages
from kourou.client.pop_result import PoppedMessage
from kourou.model.message import copy_as
from kourou.model.queue import MessageQueue
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.popping.topic_names import NOT_RETRY
from tests.client.consuming.messages import message_at

QUEUE = MessageQueue("T", "b", -1)


def message(offset: int, visible_at_s: float) -> PoppedMessage:
    popped = copy_as(PoppedMessage, message_at(offset, topic="T"))
    popped.receipt = ReceiptHandle(0, 1, 2, 3, NOT_RETRY, "b", 0, offset)
    popped.visible_at_s = visible_at_s
    return popped


def test_messages_that_are_never_settled_are_removed_when_they_are_visible_again() -> None:
    unsettled = UnsettledMessages()
    for number in range(10_000):
        unsettled.popped("T", "b", [message(number, number + 100)], now_ms=number, now_s=number)
    (source,) = unsettled._sources.values()
    assert len(source.visible_at_s) <= 1_025
    info = unsettled.infos({"T"}, 9_999)[QUEUE]
    assert (info.wait_ack_count, info.last_pop_timestamp) == (100, 9_999)


def test_message_of_another_consumer_changes_nothing() -> None:
    unsettled = UnsettledMessages()
    unsettled.settled(message(0, 10))
    unsettled.changed(message(0, 10))
    assert unsettled.infos({"T"}, 0) == {}
    unsettled.popped("T", "b", [message(1, 10)], now_ms=1, now_s=0)
    unsettled.changed(message(0, 20))
    assert unsettled.infos({"T"}, 0)[QUEUE].wait_ack_count == 1

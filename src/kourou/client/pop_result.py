"""PoppedMessage, and the decoder of the response to a pop."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from kourou.client.namespacing import remove_namespace
from kourou.errors import RemoteError
from kourou.filter.tags import matches_tag
from kourou.model import properties as names
from kourou.model.message import MessageExt, copy_as
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.popping.headers import PopMessageResponseHeader
from kourou.protocol.popping.info_strings import (
    QueueKey,
    order_count,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.popping.topic_names import NOT_RETRY, topic_kind
from kourou.protocol.record.decode import decode_pull_response

_EMPTY_CODES: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT}
)


class PoppedMessage(MessageExt):
    """One message as received by a `SimpleConsumer`.

    Attributes:
        receipt: identifies this delivery; `change_invisible` and renewals replace it.
        visible_at_s: time at which the message becomes visible again, on the event loop's clock.
    """

    __slots__ = ("__weakref__", "receipt", "visible_at_s")

    receipt: ReceiptHandle
    visible_at_s: float

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return the state for copying and pickling."""
        _, fields = super().__getstate__()
        return None, {**fields, "receipt": self.receipt, "visible_at_s": self.visible_at_s}


class UnreadablePop(NamedTuple):
    """A popped message whose body cannot be decoded.

    Attributes:
        message: as stored.
        reason: the reason, in one line.
    """

    message: PoppedMessage
    reason: str


class PopResult(NamedTuple):
    """Answer of a broker to one pop.

    Attributes:
        messages: the messages that match the subscription, in the broker's order.
        unmatched: messages with another tag of the same hash; they must be acknowledged.
        unreadable: messages whose bodies cannot be decoded.
        is_refused: the broker holds as many requests as it may, and answered at once.
    """

    messages: list[PoppedMessage]
    unmatched: list[PoppedMessage]
    unreadable: list[UnreadablePop]
    is_refused: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the broker found nothing."""
        return not (self.messages or self.unmatched or self.unreadable)


def read_pop_result(
    answer: RemotingCommand,
    broker_name: str,
    subscription: SubscriptionData,
    namespace: str,
    now_s: float,
) -> PopResult:
    """Return the result of a pop from the broker's answer.

    If the bodies decompress to more than one response may, the last messages are left out. They
    become visible again after their invisible time.

    Args:
        answer: the response.
        broker_name: the broker.
        subscription: the filter, with the plain name of the popped topic.
        namespace: the client's namespace, or empty.
        now_s: the event loop's time.

    Raises:
        RemoteError: the broker refused.
        MalformedHeaderError: a field is missing or has a bad value.
        MalformedMessageError, CodecMissingError: the first message cannot be decoded.
    """
    if answer.code in _EMPTY_CODES:
        return PopResult([], [], [], answer.code == ResponseCode.POLLING_FULL)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError.from_response(answer.code, answer.remark)
    receipts = _Receipts(answer.header(PopMessageResponseHeader), broker_name)
    decoded = decode_pull_response(answer.body, PoppedMessage)
    topic, has_tags = subscription.topic, bool(subscription.tags_set)

    def popped(message: MessageExt) -> PoppedMessage:
        # One of an inner batch is not of this class yet.
        one = message if isinstance(message, PoppedMessage) else copy_as(PoppedMessage, message)
        one.receipt = receipts.of(message)
        one.visible_at_s = now_s + one.receipt.invisible_ms / 1000
        one.broker_name = one.receipt.broker_name
        one.reconsume_times = receipts.deliveries_before(one)
        remove_namespace(namespace, (one,))
        one.topic = topic
        return one

    stored = [*decoded.messages, *(one.message for one in decoded.undecodable)]
    receipts.see(stored)
    messages: list[PoppedMessage] = []
    unmatched: list[PoppedMessage] = []
    for message in map(popped, decoded.messages):
        # The tags are decoded only if they matter: it takes a third of the time of a message.
        is_match = not has_tags or matches_tag(subscription, message.tags)
        (messages if is_match else unmatched).append(message)
    unreadable = [UnreadablePop(popped(one.message), str(one.error)) for one in decoded.undecodable]
    return PopResult(messages, unmatched, unreadable)


class _Receipts:
    """Builds the receipt handles of the messages in one answer.

    Messages of retry topics have theirs from the broker, because the answer has them under the
    original topic.
    """

    def __init__(self, header: PopMessageResponseHeader, broker_name: str) -> None:
        self._header = header
        self._broker_name = broker_name
        self._starts = parse_start_offsets(header.start_offset_info or "")
        offsets = parse_offsets(header.msg_offset_info or "")
        self._counts = parse_order_counts(header.order_count_info or "")
        kinds = {kind for kind, _ in (self._starts or offsets)}
        self._may_have_handles = not kinds or kinds != {NOT_RETRY}
        # By topic and queue id: the kind of the topic, and the start offset.
        self._places: dict[tuple[str, int], tuple[str, int | None]] = {}

    def see(self, messages: list[MessageExt]) -> None:
        """Derive missing start offsets from the first message of each queue."""
        if self._starts:
            return
        firsts: dict[QueueKey, int] = defaultdict(lambda: 2**63 - 1)
        for message in messages:
            key = (topic_kind(message.topic), str(message.queue_id))
            firsts[key] = min(firsts[key], message.queue_offset)
        self._starts = dict(firsts)

    def of(self, message: MessageExt) -> ReceiptHandle:
        """Return the receipt handle of a message."""
        if self._may_have_handles:
            text = message.properties.get(names.POP_CK)
            if text is not None:
                return decode_receipt_handle(text)
        header, offset = self._header, message.queue_offset
        place = message.topic, message.queue_id
        found = self._places.get(place)
        if found is None:
            kind = topic_kind(message.topic)
            found = self._places[place] = (kind, self._starts.get((kind, str(message.queue_id))))
        kind, start = found
        return ReceiptHandle(
            offset if start is None else start,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            kind,
            self._broker_name,
            message.queue_id,
            offset,
        )

    def deliveries_before(self, message: PoppedMessage) -> int:
        """Return the number of earlier deliveries; that of ordered pops is not in the record."""
        if not self._counts:
            return message.reconsume_times
        receipt = message.receipt
        counted = order_count(self._counts, receipt.kind, receipt.queue_id, message.queue_offset)
        return counted or message.reconsume_times

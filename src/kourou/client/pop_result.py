"""PoppedMessage, and the decoder of the response to a pop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
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
        checkpoint: `receipt`, which may lack the offset of the message: the messages of one queue
            and pop share it.
        visible_at_s: time at which the message becomes visible again, on the event loop's clock.
    """

    __slots__ = ("__weakref__", "checkpoint", "visible_at_s")

    checkpoint: ReceiptHandle
    visible_at_s: float

    @property
    def receipt(self) -> ReceiptHandle:
        """Identifies this delivery; `change_invisible` and renewals replace it."""
        # Not stored: most messages are acknowledged together, which needs the checkpoint only.
        checkpoint = self.checkpoint
        if checkpoint.offset is not None:
            return checkpoint
        return checkpoint._replace(offset=self.queue_offset)

    @receipt.setter
    def receipt(self, receipt: ReceiptHandle) -> None:
        self.checkpoint = receipt

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return the state for copying and pickling."""
        _, fields = super().__getstate__()
        return None, {**fields, "receipt": self.receipt, "visible_at_s": self.visible_at_s}


def popped_offset(message: PoppedMessage) -> int:
    """Return the offset of `receipt` without building one."""
    offset = message.checkpoint.offset
    return message.queue_offset if offset is None else offset


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
    *,
    decompress: bool = True,
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
        decompress: whether to decompress bodies; see `decode_pull_response`.

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
    decoded = decode_pull_response(answer.body, PoppedMessage, decompress=decompress)
    undecodable = [one.message for one in decoded.undecodable]
    receipts.see([*decoded.messages, *undecodable])
    terms = (receipts, subscription.topic, namespace, now_s)
    messages = _complete(decoded.messages, *terms)
    unmatched: list[PoppedMessage] = []
    if subscription.tags_set:
        # The tags are decoded only if they matter: it takes a third of the time of a message.
        unmatched = [one for one in messages if not matches_tag(subscription, one.tags)]
        if unmatched:
            messages = [one for one in messages if matches_tag(subscription, one.tags)]
    unreadable = [
        UnreadablePop(message, str(failed.error))
        for message, failed in zip(_complete(undecodable, *terms), decoded.undecodable, strict=True)
    ]
    return PopResult(messages, unmatched, unreadable)


def _complete(
    messages: Iterable[MessageExt], receipts: _Receipts, topic: str, namespace: str, now_s: float
) -> list[PoppedMessage]:
    """Return messages with the fields that their records lack; see `read_pop_result`."""
    completed: list[PoppedMessage] = []
    # Of the message before; the queue only if others share its checkpoint.
    checkpoint: ReceiptHandle | None = None
    stored_topic, queue_id, visible_at_s = "", -1, 0.0
    has_counts = receipts.has_counts
    for message in messages:
        # One of an inner batch is not of this class yet.
        one = message if type(message) is PoppedMessage else copy_as(PoppedMessage, message)
        if checkpoint is None or one.queue_id != queue_id or one.topic != stored_topic:
            checkpoint = receipts.of(one)
            visible_at_s = now_s + checkpoint.invisible_ms / 1000
            is_shared = receipts.is_shared(checkpoint)
            stored_topic, queue_id = one.topic, one.queue_id if is_shared else -1
        one.checkpoint = checkpoint
        one.visible_at_s = visible_at_s
        one.broker_name = checkpoint.broker_name
        if has_counts:
            one.reconsume_times = receipts.deliveries_before(one)
        if namespace:
            remove_namespace(namespace, (one,))
        one.topic = topic
        completed.append(one)
    return completed


class _Receipts:
    """Builds the receipt handles of the messages in one answer, one for each queue.

    Messages of retry topics have theirs from the broker, because the answer has them under the
    original topic.
    """

    def __init__(self, header: PopMessageResponseHeader, broker_name: str) -> None:
        self._header = header
        self._broker_name = broker_name
        self._starts = parse_start_offsets(header.start_offset_info or "")
        self._counts = parse_order_counts(header.order_count_info or "")
        # The records have the offsets; those of the header only tell kinds, if nothing else does.
        kinds = {kind for kind, _ in self._starts or parse_offsets(header.msg_offset_info or "")}
        self._may_have_handles = not kinds or kinds != {NOT_RETRY}
        self._by_queue: dict[tuple[str, int], ReceiptHandle] = {}  # by topic and queue id

    @property
    def has_counts(self) -> bool:
        """Whether the numbers of earlier deliveries are known: of ordered pops."""
        return bool(self._counts)

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
        """Return the receipt handle of a message, without its offset if others may share it."""
        if self._may_have_handles:
            text = message.properties.get(names.POP_CK)
            if text is not None:
                return decode_receipt_handle(text)
        queue = message.topic, message.queue_id
        found = self._by_queue.get(queue)
        if found is not None:
            return found
        header, kind = self._header, topic_kind(message.topic)
        start = self._starts.get((kind, str(message.queue_id)))
        receipt = ReceiptHandle(
            message.queue_offset if start is None else start,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            kind,
            self._broker_name,
            message.queue_id,
            message.queue_offset if start is None else None,
        )
        if start is not None:
            self._by_queue[queue] = receipt
        return receipt

    def is_shared(self, receipt: ReceiptHandle) -> bool:
        """Return whether all messages of the queue have this receipt handle."""
        return receipt.offset is None and not self._may_have_handles

    def deliveries_before(self, message: PoppedMessage) -> int:
        """Return the number of earlier deliveries; that of ordered pops is not in the record."""
        checkpoint = message.checkpoint
        counted = order_count(
            self._counts, checkpoint.kind, checkpoint.queue_id, message.queue_offset
        )
        return counted or message.reconsume_times

"""PullResult: the answer to one pull, decoded on demand."""

from __future__ import annotations

from enum import Enum
from typing import Final

from kourou.client.namespacing import remove_namespace
from kourou.decimals import is_decimal
from kourou.errors import MalformedMessageError, RemoteError
from kourou.filter.tags import matches_tag
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.pulling import PullMessageResponseHeader
from kourou.protocol.record.decode import (
    DecodedResponse,
    UndecodableMessage,
    decode_pull_response,
)

_PULL_FIELDS: Final = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")


class PullStatus(Enum):
    """Outcome of a pull; the values are response codes."""

    FOUND = ResponseCode.SUCCESS.value
    """The result has messages, but possibly none of them passes the exact tag check."""
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND.value
    """The offset is the end of the queue."""
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY.value
    """No message from the offset on matches the filter; continue at `next_offset`."""
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED.value
    """The queue does not contain the offset; continue at `next_offset`."""


class PullResult:
    """Answer of a broker to one pull.

    Attributes:
        queue: the queue pulled.
        status: the outcome.
        next_offset: the queue offset of the next pull. `decode` lowers it if not all bodies are
            decompressed, because of their total size.
        min_offset: the smallest queue offset stored.
        max_offset: the queue offset that the next message will have.
        raw: the stored records, one after the other (`kourou.protocol.record.layout`).
        suggested_broker_id: the replica of the broker to pull from next; 0 is the master.
    """

    __slots__ = (
        "_decoded",
        "_namespace",
        "_pulled_offset",
        "_subscription",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue",
        "raw",
        "status",
        "suggested_broker_id",
    )

    def __init__(
        self,
        queue: MessageQueue,
        status: PullStatus,
        *,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        raw: bytes = b"",
        suggested_broker_id: int = 0,
        subscription: SubscriptionData | None = None,
        pulled_offset: int = 0,
        namespace: str = "",
    ) -> None:
        self.queue = queue
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.raw = raw
        self.suggested_broker_id = suggested_broker_id
        self._subscription = subscription
        self._pulled_offset = pulled_offset
        self._namespace = namespace
        self._decoded: DecodedResponse | None = None

    def __repr__(self) -> str:
        return (
            f"PullResult({self.status.name}, queue={self.queue}, next_offset={self.next_offset}, "
            f"min_offset={self.min_offset}, max_offset={self.max_offset}, {len(self.raw)} bytes)"
        )

    @property
    def messages(self) -> list[MessageExt]:
        """The messages in offset order, decoded on first access.

        Brokers filter by the hash of a tag, so messages with another tag of the same hash are
        removed here. A broker that stores a batch as one record delivers the whole batch, so its
        messages before the pulled offset are removed as well.

        Raises:
            MalformedMessageError: a record does not parse, or its body cannot be decompressed; the
                text names the message. `readable` has the others.
            CodecMissingError: the package that decompresses a body is not installed.
        """
        self.decode()
        for message, error in self.undecodable:
            raise MalformedMessageError(
                f"message {message.msg_id} at offset {message.queue_offset} of {self.queue} cannot "
                f"be read: {error}"
            )
        return self.readable

    @property
    def readable(self) -> list[MessageExt]:
        """The messages that can be read, in offset order. Raises as `decode`."""
        return self.decode().messages

    @property
    def undecodable(self) -> list[UndecodableMessage]:
        """The messages whose bodies cannot be read, as stored. Raises as `decode`."""
        return self.decode().undecodable

    @property
    def all_messages(self) -> list[MessageExt]:
        """All messages in offset order, undecodable ones as stored. Raises as `decode`."""
        stored = [one.message for one in self.undecodable]
        return sorted([*self.readable, *stored], key=lambda message: message.queue_offset)

    def decode(self) -> DecodedResponse:
        """Decode the messages, once; `next_offset` is lowered if some are left for another pull.

        Raises:
            MalformedMessageError: the first record has no readable header.
            CodecMissingError: the package that decompresses the first body is not installed.
        """
        if self._decoded is None:
            decoded = decode_pull_response(self.raw)
            if decoded.resume_offset is not None:
                self.next_offset = decoded.resume_offset
            messages = decoded.messages
            if messages and messages[0].queue_offset < self._pulled_offset:
                messages = [one for one in messages if one.queue_offset >= self._pulled_offset]
            undecodable = decoded.undecodable
            self._complete(messages)
            self._complete([one.message for one in undecodable])
            wanted = self._subscription
            if wanted is not None and wanted.tags_set:
                messages = [message for message in messages if matches_tag(wanted, message.tags)]
                undecodable = [one for one in undecodable if matches_tag(wanted, one.message.tags)]
            self._decoded = DecodedResponse(messages, undecodable, decoded.resume_offset)
        return self._decoded

    def _complete(self, messages: list[MessageExt]) -> None:
        broker_name = self.queue.broker_name
        for message in messages:
            message.broker_name = broker_name
        remove_namespace(self._namespace, messages)


_PULL_CODES = frozenset(status.value for status in PullStatus)


def read_pull_result(
    answer: RemotingCommand,
    queue: MessageQueue,
    subscription: SubscriptionData,
    offset: int,
    namespace: str,
) -> PullResult:
    """Return the result of a pull at `offset` from the broker's answer.

    Raises:
        RemoteError: the broker refused.
        MalformedHeaderError: a field is missing or has a bad value.
    """
    if answer.code not in _PULL_CODES:
        raise RemoteError.from_response(answer.code, answer.remark)
    fields = answer.ext_fields
    texts = [fields.get(name, "") for name in _PULL_FIELDS]
    if all(map(is_decimal, texts)):
        # The usual case. Decoding into the header class takes ten times as long.
        next_offset, min_offset, max_offset, broker_id = map(int, texts)
    else:
        header = answer.header(PullMessageResponseHeader)
        next_offset, broker_id = header.next_begin_offset, header.suggest_which_broker_id
        min_offset, max_offset = header.min_offset, header.max_offset
    return PullResult(
        queue,
        PullStatus(answer.code),
        next_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
        raw=answer.body,
        suggested_broker_id=broker_id,
        subscription=subscription,
        pulled_offset=offset,
        namespace=namespace,
    )

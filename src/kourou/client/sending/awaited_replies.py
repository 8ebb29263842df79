"""Table of requests that wait for a reply, and the handler of replies pushed by brokers (326).

Source: RequestFutureHolder, ClientRemotingProcessor.receiveReplyMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kourou.clock import Clock
from kourou.errors import (
    ConfigError,
    ConnectionLostError,
    MalformedHeaderError,
    TooManyRequestsError,
)
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.message import MessageExt
from kourou.model.properties import decode_properties
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.compression import decompress
from kourou.protocol.sending import ReplyMessageRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import parse_address

log = logging.getLogger(__name__)

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum decompressed size of a reply in bytes."""

_NO_HOST: Final[Host] = ("0.0.0.0", 0)  # noqa: S104 - as in a record without a host


class AwaitedReplies:
    """The requests of one producer that wait for a reply, by correlation id.

    Args:
        waiting_max: maximum number of waiting requests.
        clock: gives the arrival time of replies.
    """

    def __init__(self, waiting_max: int, clock: Clock) -> None:
        self._waiting_max = waiting_max
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of requests from brokers."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.on_push_reply_message_to_client}

    @contextmanager
    def wait(self, correlation_id: str) -> Iterator[asyncio.Future[MessageExt]]:
        """Register a request for the duration of a `with` block; yield a future of its reply.

        Raises:
            TooManyRequestsError: `waiting_max` requests wait already.
        """
        if len(self._waiting) >= self._waiting_max:
            raise TooManyRequestsError(
                f"{self._waiting_max} requests wait for replies, the limit requests_waiting_max"
            )
        reply: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]
            if reply.done() and not reply.cancelled():
                # Marked as retrieved: the caller may have stopped waiting before it was set.
                reply.exception()

    def on_push_reply_message_to_client(self, request: Request) -> RemotingCommand:
        """Serve 326: complete the request that waits for the reply.

        A reply without a waiting request is accepted and dropped: the request has timed out, or it
        was delivered twice and has been answered before.
        """
        message = reply_of(request.command, self._clock.now_ms())
        correlation_id = message.properties.get(names.CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None or reply.done():
            log.debug("reply.unexpected correlation=%s from=%s", correlation_id, message.born_host)
        else:
            reply.set_result(message)
        return response(request.command, ResponseCode.SUCCESS)

    def fail_all(self) -> None:
        """Fail all waiting requests, since no reply can arrive any more."""
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(
                    ConnectionLostError("the producer closed before the reply arrived")
                )


def reply_of(command: RemotingCommand, now_ms: int) -> MessageExt:
    """Return the message of a request 326.

    The request does not contain the offsets of the message: they are 0 in the result.

    Raises:
        MalformedHeaderError: a field is missing or has a bad value.
        MalformedMessageError: the body cannot be decompressed, or not within `REPLY_BYTES_MAX`.
        CodecMissingError: the package that decompresses it is not installed.
    """
    header = command.header(ReplyMessageRequestHeader)
    body, sys_flag = command.body, header.sys_flag
    if sys_flag & COMPRESSED:
        body = decompress(body, sys_flag, size_max=REPLY_BYTES_MAX)
        sys_flag &= ~COMPRESSED
    properties = decode_properties((header.properties or "").encode(errors="replace"))
    properties[names.ARRIVE_TIME] = str(now_ms)
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        flag=header.flag,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        sys_flag=sys_flag,
        born_at_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_at_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        store_size=0,
        body_crc=0,
    )


def _host(text: str) -> Host:
    if not text:
        return _NO_HOST
    try:
        return parse_address(text, 0)
    except ConfigError as error:
        raise MalformedHeaderError(f"a reply's host: {error}") from None

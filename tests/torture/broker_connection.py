"""Single requests to a simulated or real broker, and reads of whole queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from kourou.errors import MalformedMessageError
from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.offsets import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from kourou.protocol.pulling import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
)
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.send_rig import message

TIMEOUT_S: Final = 60.0
NO_SUCH: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_EXIST)
_STUCK_MAX: Final = 10_000


@dataclass
class QueueContents:
    """Answers of a broker for one queue.

    Attributes:
        messages: by offset.
        refused: the broker's remark for each offset that it could not serve.
        malformed: the decoder's error for each offset whose served bytes are damaged.
    """

    messages: dict[int, MessageExt] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)


class BrokerConnection:
    """A connection to a broker. Leaving its `async with` block closes it."""

    def __init__(self, address: str, runtime: Runtime | None = None) -> None:
        self._address = address
        self._pool = ConnectionPool(runtime or Runtime.system(), {}, ConnectionLimits())

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Return the answer.

        Raises:
            KourouError: there is no answer.
        """
        return await self._pool.request(self._address, command, TIMEOUT_S)

    async def send(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str] | None = None
    ) -> RemotingCommand:
        """Return the answer to a send."""
        text = encode_properties(properties or {}).decode()
        return await self.ask(message(body, text, topic=topic, queue_id=queue_id))

    async def pull(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32
    ) -> RemotingCommand:
        """Return the answer to a pull that the broker must not hold."""
        header = PullMessageRequestHeader(
            consumer_group="readers",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )
        return await self.ask(request(RequestCode.PULL_MESSAGE, header))

    async def read(self, topic: str, queue_id: int, begin: int = 0) -> QueueContents:
        """Return all messages of a queue from an offset on; offsets without one are skipped."""
        held, at = QueueContents(), begin
        for _ in range(_STUCK_MAX):
            answer = await self.pull(topic, queue_id, at)
            if answer.code == ResponseCode.SUCCESS:
                at = await self._take(held, topic, queue_id, at, answer)
            elif answer.code in NO_SUCH:
                held.refused.setdefault(at, str(answer.remark))
                return held
            elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED,
                                 ResponseCode.PULL_RETRY_IMMEDIATELY):  # fmt: skip
                reported = answer.header(PullMessageResponseHeader)
                if at >= reported.max_offset:
                    return held
                held.refused[at] = f"code {answer.code}, next offset {reported.next_begin_offset}"
                at = max(at + 1, reported.next_begin_offset)
            else:
                held.refused[at] = str(answer.remark)
                at += 1
                if len(held.refused) > 200:
                    return held
        raise AssertionError(f"{topic}/{queue_id} has no end: {at}")

    async def _take(
        self, held: QueueContents, topic: str, queue_id: int, at: int, answer: RemotingCommand
    ) -> int:
        """Add the messages of an answer, pulled singly if malformed; return the next offset."""
        try:
            messages = decode_messages(answer.body)
        except MalformedMessageError:
            answer = await self.pull(topic, queue_id, at, 1)
            try:
                messages = decode_messages(answer.body)
            except MalformedMessageError as error:
                held.malformed[at] = str(error)
                return at + 1
        for each in messages:
            held.messages[each.queue_offset] = each
        return max([at, *(each.queue_offset for each in messages)]) + 1

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        answer = await self.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset; None if it has none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        answer = await self.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, header))
        if answer.code != ResponseCode.SUCCESS:
            return None
        return int(answer.ext_fields["offset"])

    async def configure(self, line: str) -> None:
        """Change an option of the broker while it runs."""
        answer = await self.ask(request(RequestCode.UPDATE_BROKER_CONFIG, body=line.encode()))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def query(self, topic: str, key: str) -> list[MessageExt]:
        """Return the messages of a key."""
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=64, begin_timestamp=0, end_timestamp=(1 << 63) - 1
        )
        answer = await self.ask(request(RequestCode.QUERY_MESSAGE, header))
        return decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.close()

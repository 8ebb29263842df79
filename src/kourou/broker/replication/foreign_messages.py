"""Reads messages from brokers of other names: from the master, or a replica that serves reads.

A master needs them that revives the pops of a slave elsewhere, which acts for its own master. The
brokers are found by name servers. One that cannot be reached is not tried again for a second.

Source: EscapeBridge.getMessageFromRemoteAsync, BrokerOuterAPI.pullMessageFromSpecificBrokerAsync,
apache/rocketmq 5.5.0, where any answer without the message means that it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.errors import KourouError, MalformedMessageError, TopicNotFoundError
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.model.topic import TOOLS_GROUP
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.pulling import PullMessageRequestHeader, PullMessageResponseHeader
from kourou.protocol.record.read import read_checked
from kourou.protocol.routes import decode_cluster_info
from kourou.remoting.pool import ConnectionPool

_TIMEOUT_S: Final = 3.0
_READS_MAX: Final = 16
"""Most reads at a time; others wait."""
_MESSAGES_MAX: Final = 32
_FRESH_S: Final = 30.0
"""Time for which addresses are used before they are asked for again; not after a failed read."""
_PAUSE_S: Final = 1.0
_NAMES_MAX: Final = 1_000
_FOUND_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class ForeignQueue(NamedTuple):
    """A queue of another broker."""

    broker_name: str
    topic: str
    queue_id: int


@dataclass(slots=True)
class ForeignReads:
    """Result of a read; offsets in none of these could not be asked for.

    Attributes:
        records: verified records by queue offset.
        expired: offsets before the first one of the queue.
        absent: other offsets at which the broker has no message: behind its end, or in a topic that
            it does not have.
        reason: why not all could be asked for; empty if they could.
    """

    records: dict[int, bytes] = field(default_factory=dict)
    expired: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    reason: str = ""

    def left(self, offsets: Sequence[int]) -> list[int]:
        """Return those of the offsets that are in none of the results."""
        known = self.records.keys() | self.expired | self.absent
        return [offset for offset in offsets if offset not in known]


class ForeignMessages:
    """Reads for one broker."""

    def __init__(self, namesrvs: Sequence[str], pool: ConnectionPool) -> None:
        """Find brokers by `namesrvs`, and read by connections of `pool`."""
        self._namesrvs = namesrvs
        self._pool = pool
        self._slots = asyncio.Semaphore(_READS_MAX)
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._asked_at_s = -_FRESH_S
        self._not_before_s: dict[str, float] = {}

    async def read(self, queue: ForeignQueue, offsets: Sequence[int]) -> ForeignReads:
        """Return the messages of a queue at these offsets, which ascend."""
        result = ForeignReads()
        async with self._slots:
            now_s = asyncio.get_running_loop().time()
            if now_s < self._not_before_s.get(queue.broker_name, 0.0):
                result.reason = f"broker {queue.broker_name} was not reached a moment ago"
                return result
            try:
                addresses = await self._addresses_of(queue.broker_name)
            except (KourouError, OSError) as error:
                addresses, result.reason = (), str(error)
            for address in addresses:
                try:
                    await self._read_from(address, queue, offsets, result)
                except TopicNotFoundError:
                    result.absent.update(result.left(offsets))
                except (KourouError, OSError) as error:
                    result.reason = f"{address}: {error}"
                    continue
                result.reason = ""
                return result
            self._asked_at_s = -_FRESH_S
            if len(self._not_before_s) >= _NAMES_MAX:
                self._not_before_s.clear()
            self._not_before_s[queue.broker_name] = asyncio.get_running_loop().time() + _PAUSE_S
        result.reason = result.reason or f"no name server knows broker {queue.broker_name}"
        return result

    async def _read_from(
        self, address: str, queue: ForeignQueue, offsets: Sequence[int], result: ForeignReads
    ) -> None:
        """Ask one broker for what is left, until it has answered for all.

        Raises:
            TransportError, RemoteError, ProtocolError: it does not answer, or serves no reads now.
            MalformedMessageError: a record is damaged.
        """
        while left := result.left(offsets):
            first = left[0]
            answer = await self._pull(address, queue, first, left[-1] + 1 - first)
            if answer.code in _FOUND_NOTHING:
                low = answer.header(PullMessageResponseHeader).min_offset
                result.expired.update(offset for offset in left if offset < low)
                if first >= low:  # read or not, there is nothing at `first`
                    result.absent.add(first)
                continue
            raise_for_response(answer)
            end = answer.header(PullMessageResponseHeader).next_begin_offset
            at = 0
            while at < len(answer.body):
                header = read_checked(answer.body, at)
                if header.queue_offset in left:
                    result.records[header.queue_offset] = answer.body[at : at + header.total_size]
                end = max(end, header.queue_offset + 1)
                at += header.total_size
            if end <= first:
                raise MalformedMessageError(f"the answer ends before its offset {first}")
            passed = {offset for offset in left if offset < end}
            result.absent |= passed - result.records.keys()

    async def _pull(
        self, address: str, queue: ForeignQueue, offset: int, count: int
    ) -> RemotingCommand:
        header = PullMessageRequestHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(count, _MESSAGES_MAX),
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        command = request(RequestCode.PULL_MESSAGE, header)
        return await self._pool.request(address, command, _TIMEOUT_S)

    async def _addresses_of(self, broker_name: str) -> Sequence[str]:
        """Return the addresses of a broker's replicas, the master's first; none if it is not known.

        Raises:
            TransportError, RemoteError, ProtocolError: no name server answers.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_at_s < _FRESH_S:
            return self._addresses.get(broker_name, ())
        failure: KourouError | None = None
        for namesrv in self._namesrvs:
            try:
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                answer = await self._pool.request(namesrv, command, _TIMEOUT_S)
                raise_for_response(answer)
                brokers = decode_cluster_info(answer.body).brokers
            except KourouError as error:
                failure = error
                continue
            self._addresses = {
                name: [broker.broker_addrs[number] for number in sorted(broker.broker_addrs)]
                for name, broker in brokers.items()
            }
            self._asked_at_s = now_s
            return self._addresses.get(broker_name, ())
        if failure is not None:
            raise failure
        return ()

"""PEEK_MESSAGE (200052): return messages from where a group would pop, without any change.

Source: PeekMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kourou.broker.context import BrokerContext
from kourou.broker.popping.pop_answers import FOUND, NOTHING, refusal_answer
from kourou.broker.popping.pop_facts import pop_facts, retry_topics_of
from kourou.broker.popping.pop_reads import PopReads, QueueRead, ReadPlace
from kourou.broker.popping.pop_run import PERCENT, PopQueue
from kourou.broker.popping.pop_starts import PopStarts
from kourou.broker.popping.pop_verdicts import (
    MESSAGES_MAX,
    ReadTarget,
    judge_count,
    judge_reader,
)
from kourou.broker.pulling.verdicts import Refusal
from kourou.broker.pulling.verified_reads import DAMAGE_REMEDY
from kourou.errors import DamagedRecordError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.popping.headers import PeekMessageRequestHeader, PopMessageResponseHeader
from kourou.remoting.connection import Request


class PeekHandler:
    """Serves PEEK_MESSAGE."""

    def __init__(self, context: BrokerContext, *, starts: PopStarts, reads: PopReads) -> None:
        self._context = context
        self._reader = context.store.reader
        self._starts = starts
        self._reads = reads

    def on_peek_message(self, request: Request) -> RemotingCommand | None:
        """Answer with messages; None if they must be read from the disk first."""
        command = request.command
        header = command.header(PeekMessageRequestHeader)
        target = ReadTarget(header.consumer_group, header.topic, header.queue_id)
        facts = pop_facts(self._context, request, header.topic, header.consumer_group)
        found = judge_reader(target, facts)
        if isinstance(found, Refusal):
            return refusal_answer(command, found.code, found.text)
        negative = judge_count(header.max_msg_nums)
        if negative is not None:
            return refusal_answer(command, negative.code, negative.text)
        self._context.later.answer(request, partial(self._peek, request, header, found[0]))
        return None

    async def _peek(
        self, request: Request, header: PeekMessageRequestHeader, topic: TopicConfig
    ) -> RemotingCommand:
        command, most = request.command, min(header.max_msg_nums, MESSAGES_MAX)
        bodies: list[bytes] = []
        count = rest = 0
        for queue in self._queues(header, topic):
            offset = self._starts.peek(queue)
            rest += self._reader.max_offset(queue.topic, queue.queue_id) - offset
            if count >= most:
                continue
            try:
                read = await self._read(queue, offset, most - count)
            except DamagedRecordError as error:
                text = f"{error}; {DAMAGE_REMEDY}"
                return refusal_answer(command, ResponseCode.SYSTEM_ERROR, text)
            count += len(read.offsets)
            bodies.append(read.body)
        fields = PopMessageResponseHeader(0, 0, 0, max(0, rest))
        if not count:
            return response(command, ResponseCode.PULL_NOT_FOUND, NOTHING, fields)
        return response(command, ResponseCode.SUCCESS, FOUND, fields, b"".join(bodies))

    async def _read(self, queue: PopQueue, offset: int, count: int) -> QueueRead:
        """Read one queue; a wrong offset is corrected once."""
        read = QueueRead((), b"", offset, offset)
        for _ in range(2):
            place = ReadPlace(queue.topic, queue.queue_id, offset)
            resident = self._reads.read_resident(place, count, None)
            read = await self._reads.read(place, count, None) if resident is None else resident
            if not read.is_wrong_offset:
                break
            offset = read.next_offset
        return read

    def _queues(self, header: PeekMessageRequestHeader, topic: TopicConfig) -> Iterator[PopQueue]:
        """Yield the queues to read: one time in five those of the retry topic first."""
        group, number = header.consumer_group, self._context.random.randrange(PERCENT)
        retry = retry_topics_of(self._context, topic.name, group).current
        retries = [] if retry is None else list(_from(retry, group, number))
        is_retry_first = number % 5 == 0
        if is_retry_first:
            yield from retries
        if header.queue_id < 0:
            yield from _from(topic, group, number)
        else:
            yield PopQueue(topic.name, group, header.queue_id)
        if not is_retry_first:
            yield from retries


def _from(topic: TopicConfig, group: str, number: int) -> Iterator[PopQueue]:
    """Yield all queues of a topic from a random one on."""
    for at in range(topic.read_queue_nums):
        yield PopQueue(topic.name, group, (number + at) % topic.read_queue_nums)

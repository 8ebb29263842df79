"""Handlers of the requests that brokers send to a consumer.

    code  request                                   action or response
    40    members joined or left the group          rebalance; no response
    220   an administrator resets the group         continue at the given offsets
    221   query of the consumer's offsets           offsets in memory
    307   query of the running info                 queues, statistics, settings, stacks
    309   deliver this message to the listener      the listener's result

Source: ClientRemotingProcessor.java, DefaultMQPushConsumerImpl.consumerRunningInfo,
ConsumeMessageConcurrentlyService.consumeMessageDirectly.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Final, Protocol

from kourou.client.background import BackgroundTasks
from kourou.client.namespacing import remove_namespace
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import (
    ConsumerStatus,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    decode_reset_offsets,
    encode_consumer_status,
)
from kourou.protocol.record.decode import decode_message
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    encode_consume_directly_result,
    encode_consumer_running_info,
)
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler, reply_error

THREADS_MAX: Final = 200
"""Threads whose stacks are reported."""

TASKS_MAX: Final = 200
"""Tasks of the event loop whose stacks are reported."""

_TASK_FRAMES_MAX: Final = 20


class RequestTarget(Protocol):
    """The consumer that receives the requests."""

    @property
    def tasks(self) -> BackgroundTasks:
        """Background tasks, which end with the consumer."""

    def rebalance_soon(self) -> None:
        """Request a rebalance pass."""

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets."""

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets in memory of the topic's queues."""

    def running_info(self, stacks: str | None) -> ConsumerRunningInfo:
        """Return settings, queues, statistics and, if given, stacks."""

    async def consume(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Deliver one message to the listener, and return its result."""


class ClientRequests:
    """The request handlers of one consumer.

    Args:
        group: the consumer group; requests for another group are ignored or refused.
        namespace: the consumer's namespace, or empty.

    Attributes:
        target: the consumer; must be set before any request can arrive.
    """

    def __init__(self, group: str, namespace: str = "") -> None:
        self._group = group
        self._namespace = namespace
        self.target: RequestTarget

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.on_consumer_ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.on_reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.on_consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.on_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.on_consume_directly,
        }

    def on_consumer_ids_changed(self, _: Request) -> None:
        """Request a rebalance pass."""
        self.target.rebalance_soon()

    def on_reset_offset(self, request: Request) -> RemotingCommand | None:
        """Continue at other offsets. Java's brokers send this request oneway."""
        header = request.command.header(ResetOffsetRequestHeader)
        offsets = decode_reset_offsets(request.command.body)
        if header.group == self._group:
            of_topic = {queue: at for queue, at in offsets.items() if queue.topic == header.topic}
            self.target.tasks.start(lambda: self.target.reset(of_topic), f"reset {header.topic}")
        return response(request.command, ResponseCode.SUCCESS)

    def on_consumer_status(self, request: Request) -> RemotingCommand:
        """Return the offsets of a topic's queues, which may be ahead of the committed ones."""
        header = request.command.header(GetConsumerStatusRequestHeader)
        offsets = self.target.offsets_of(header.topic) if header.group == self._group else {}
        answer = response(request.command, ResponseCode.SUCCESS)
        answer.body = encode_consumer_status(ConsumerStatus(offsets))
        return answer

    def on_running_info(self, request: Request) -> RemotingCommand:
        """Return the consumer's running info."""
        header = request.command.header(GetConsumerRunningInfoRequestHeader)
        if header.consumer_group != self._group:
            return self._unknown(request, header.consumer_group)
        stacks = thread_stacks() if header.jstack_enable else None
        answer = response(request.command, ResponseCode.SUCCESS)
        answer.body = encode_consumer_running_info(self.target.running_info(stacks))
        return answer

    def on_consume_directly(self, request: Request) -> RemotingCommand | None:
        """Deliver the message in the body to the listener; answer when its call has ended."""
        header = request.command.header(ConsumeMessageDirectlyResultRequestHeader)
        if header.consumer_group != self._group:
            return self._unknown(request, header.consumer_group)
        message = decode_message(request.command.body)
        message.broker_name = header.message_broker_name or ""
        remove_namespace(self._namespace, (message,))

        async def consume() -> None:
            try:
                result = await self.target.consume(message)
            except KourouError as error:
                reply_error(request, error)
                return
            answer = response(request.command, ResponseCode.SUCCESS)
            answer.body = encode_consume_directly_result(result)
            request.reply(answer)

        self.target.tasks.start(consume, f"consume {message.msg_id}")
        return None

    def _unknown(self, request: Request, group: str) -> RemotingCommand:
        text = f"The Consumer Group <{group}> not exist in this consumer"
        return response(request.command, ResponseCode.SYSTEM_ERROR, text)


def thread_stacks() -> str:
    """Return the stacks of all threads and tasks as text, innermost call last."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to inspect other threads
    parts = []
    for thread in threading.enumerate()[:THREADS_MAX]:
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            parts.append(f"{thread.name}  TID: {thread.ident}\n{stack}")
    return "\n".join([*parts, *_task_stacks()])


def _task_stacks() -> list[str]:
    """Return the stacks of the event loop's tasks, because many listeners are coroutines."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return []
    parts = []
    for task in sorted(tasks, key=asyncio.Task.get_name)[:TASKS_MAX]:
        frames = task.get_stack(limit=_TASK_FRAMES_MAX)
        lines = [line for frame in frames for line in traceback.format_stack(frame, limit=1)]
        parts.append(f"task {task.get_name()}\n{''.join(lines)}")
    return parts

"""What brokers ask of a consumer.

    40   others joined or left the group            rebalance; no answer
    220  an administrator resets the group          go on at the offsets given; no answer
    221  how far is it?                             offsets in memory
    307  how does it run?                           queues, statistics, settings, stacks
    309  hand this message to the listener          what came of it

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
from kourou.client.namespacing import take_out
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    decode_reset_offsets,
    encode_consume_directly_result,
    encode_consumer_running_info,
    encode_consumer_status,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.headers_admin_clients import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from kourou.protocol.headers_admin_offsets import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from kourou.protocol.message_decoding import decode_message
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler, reply_error

THREADS_MAX: Final = 200
"""Threads whose stacks are told."""

TASKS_MAX: Final = 200
"""Tasks of the event loop whose stacks are told."""

_TASK_FRAMES_MAX: Final = 20


class Asked(Protocol):
    """The consumer that requests are about."""

    @property
    def tasks(self) -> BackgroundTasks:
        """What ends with the consumer."""

    def rebalance_soon(self) -> None:
        """Look at the sharing out of queues again."""

    async def reset(self, wanted: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets in those of the queues that it has."""

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets in memory of the topic's queues."""

    def running_info(self, stacks: str | None) -> ConsumerRunningInfo:
        """Return how it runs."""

    async def consume(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Hand one message to the listener, and return what came of it."""


class ClientRequests:
    """Answers for one consumer.

    Args:
        group: the consumer group; requests for another are refused.
        namespace: of the consumer, or empty.

    Attributes:
        asked: the consumer; set before any request can come.
    """

    def __init__(self, group: str, namespace: str = "") -> None:
        self._group = group
        self._namespace = namespace
        self.asked: Asked

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
        """Look at the sharing out of queues again."""
        self.asked.rebalance_soon()

    def on_reset_offset(self, request: Request) -> RemotingCommand | None:
        """Go on at other offsets. Java's brokers send this without wanting an answer."""
        header = request.command.header(ResetOffsetRequestHeader)
        wanted = decode_reset_offsets(request.command.body)
        if header.group == self._group:
            of_topic = {queue: at for queue, at in wanted.items() if queue.topic == header.topic}
            self.asked.tasks.start(lambda: self.asked.reset(of_topic), f"reset {header.topic}")
        return response(request.command, ResponseCode.SUCCESS)

    def on_consumer_status(self, request: Request) -> RemotingCommand:
        """Tell the offsets of a topic's queues, which may be newer than the committed ones."""
        header = request.command.header(GetConsumerStatusRequestHeader)
        offsets = self.asked.offsets_of(header.topic) if header.group == self._group else {}
        answer = response(request.command, ResponseCode.SUCCESS)
        answer.body = encode_consumer_status(ConsumerStatus(offsets))
        return answer

    def on_running_info(self, request: Request) -> RemotingCommand:
        """Tell how the consumer runs."""
        header = request.command.header(GetConsumerRunningInfoRequestHeader)
        if header.consumer_group != self._group:
            return self._unknown(request, header.consumer_group)
        stacks = thread_stacks() if header.jstack_enable else None
        answer = response(request.command, ResponseCode.SUCCESS)
        answer.body = encode_consumer_running_info(self.asked.running_info(stacks))
        return answer

    def on_consume_directly(self, request: Request) -> RemotingCommand | None:
        """Hand the message of the body to the listener; answer when that has ended."""
        header = request.command.header(ConsumeMessageDirectlyResultRequestHeader)
        if header.consumer_group != self._group:
            return self._unknown(request, header.consumer_group)
        message = decode_message(request.command.body)
        message.broker_name = header.message_broker_name or ""
        take_out(self._namespace, (message,))

        async def consume() -> None:
            try:
                result = await self.asked.consume(message)
            except KourouError as error:
                reply_error(request, error)
                return
            answer = response(request.command, ResponseCode.SUCCESS)
            answer.body = encode_consume_directly_result(result)
            request.reply(answer)

        self.asked.tasks.start(consume, f"consume {message.msg_id}")
        return None

    def _unknown(self, request: Request, group: str) -> RemotingCommand:
        text = f"The Consumer Group <{group}> not exist in this consumer"
        return response(request.command, ResponseCode.SYSTEM_ERROR, text)


def thread_stacks() -> str:
    """Return where each thread of the process is, innermost call last, and each task."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to see other threads
    parts = []
    for thread in threading.enumerate()[:THREADS_MAX]:
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            parts.append(f"{thread.name}  TID: {thread.ident}\n{stack}")
    return "\n".join([*parts, *_task_stacks()])


def _task_stacks() -> list[str]:
    """Return where each task of the event loop waits: most listeners are coroutines."""
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

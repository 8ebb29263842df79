"""What push and pull consumers alike do with the messages that a pull brought.

Source: FilterMessageHook.java, PullAPIWrapper.processPullResult, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from kourou.client.consuming.consumer_config import MessageFilter
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic
from kourou.protocol.message_decoding import Undecodable

log = logging.getLogger(__name__)

PulledSome = Callable[[str, int, float], None]
"""Called with a topic, how many messages a pull found, and the time that it took in ms."""


Bury = Callable[[MessageQueue, Undecodable], Awaitable[bool]]
"""Has a message of a queue become a dead letter that cannot be read; returns whether it is one."""


def chosen(message_filter: MessageFilter | None, messages: list[MessageExt]) -> list[MessageExt]:
    """Return what a user's filter lets pass, in the order of the queue; all if it fails."""
    if message_filter is None or not messages:
        return messages
    try:
        passed = {id(message) for message in message_filter(tuple(messages))}
    except PROGRAM_ENDS:
        raise
    except BaseException:
        log.exception("message_filter.failed queue_id=%d", messages[0].queue_id)
        return messages
    return [message for message in messages if id(message) in passed]


def restore_topic(message: MessageExt) -> None:
    """Give a message from the retry topic the topic that its producer sent it to."""
    if is_retry_topic(message.topic):
        message.topic = message.properties.get(names.RETRY_TOPIC) or message.topic


async def bury_all(result: PullResult, bury: Bury) -> tuple[list[MessageExt], int, str | None]:
    """Have those messages of a pull become dead letters that cannot be read.

    Returns:
        The messages to consume, where to pull next, and why that is not behind all of the result:
        no broker takes a message that cannot be read.
    """
    for one in result.undecodable if result.status is PullStatus.FOUND else ():
        if not await bury(result.queue, one):
            stop = one.message.queue_offset
            problem = (
                f"message {one.message.msg_id} cannot be read ({one.error}), and its broker does "
                "not take it as a dead letter"
            )
            return [m for m in result.readable if m.queue_offset < stop], stop, problem
    messages = result.readable if result.status is PullStatus.FOUND else []
    return messages, result.next_offset, None

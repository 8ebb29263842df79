"""Processing of pulled messages that push and pull consumers share.

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
from kourou.protocol.message_decoding import UndecodableMessage

log = logging.getLogger(__name__)

OnPulled = Callable[[str, int, float], None]
"""Called with a topic, the number of messages that a pull found, and its duration in ms."""


StoreDeadLetter = Callable[[MessageQueue, UndecodableMessage], Awaitable[bool]]
"""Stores an unreadable message of a queue as a dead letter; returns whether it was accepted."""


def apply_filter(
    message_filter: MessageFilter | None, messages: list[MessageExt]
) -> list[MessageExt]:
    """Return the messages that a user's filter accepts, in queue order; all if it raises."""
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
    """Set the topic of a message from the retry topic to the one it was sent to."""
    if is_retry_topic(message.topic):
        message.topic = message.properties.get(names.RETRY_TOPIC) or message.topic


async def store_dead_letters(
    result: PullResult, store_dead_letter: StoreDeadLetter
) -> tuple[list[MessageExt], int, str | None]:
    """Store the unreadable messages of a pull as dead letters.

    Returns:
        The messages to consume, the offset of the next pull, and a problem or None. The problem is
        an unreadable message that could not be stored as a dead letter; the next pull then starts
        at that message.
    """
    for one in result.undecodable if result.status is PullStatus.FOUND else ():
        if not await store_dead_letter(result.queue, one):
            stop = one.message.queue_offset
            problem = (
                f"message {one.message.msg_id} is unreadable ({one.error}) and was not accepted "
                "as a dead letter"
            )
            return [m for m in result.readable if m.queue_offset < stop], stop, problem
    messages = result.readable if result.status is PullStatus.FOUND else []
    return messages, result.next_offset, None

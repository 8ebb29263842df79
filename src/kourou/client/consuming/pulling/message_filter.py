"""A user's own filter of what pulls bring, behind the broker's.

Source: FilterMessageHook.java, PullAPIWrapper.processPullResult, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.client.consuming.consumer_config import MessageFilter
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


def chosen(message_filter: MessageFilter | None, messages: list[MessageExt]) -> list[MessageExt]:
    """Return what the filter lets pass, in the order of the queue; all of them if it fails."""
    if message_filter is None or not messages:
        return messages
    try:
        passed = {id(message) for message in message_filter(tuple(messages))}
    except Exception:
        log.exception("message_filter.failed queue_id=%d", messages[0].queue_id)
        return messages
    return [message for message in messages if id(message) in passed]

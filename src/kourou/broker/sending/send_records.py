"""Shared steps of requests that store messages: choice of the queue, sync option, record draft.

Source: see `send.py` and `reply.py`.
"""

from __future__ import annotations

from random import Random

from kourou.broker.writing.placement import Placement
from kourou.model.host import Host
from kourou.model.topic import TopicConfig
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.sending import SendHeader


def queue_of(header: SendHeader, topic: TopicConfig, random: Random) -> int:
    """Return the queue that the client chose, else a random writable one of the topic."""
    return random.randrange(topic.write_queue_nums) if header.queue_id < 0 else header.queue_id


def draft_of(
    placement: Placement,
    *,
    header: SendHeader,
    born_host: Host,
    store_host: Host,
    flag: int,
    body: bytes,
    properties: bytes,
) -> RecordDraft:
    """Return the record draft of one message, with the flags and times of its request."""
    return RecordDraft(
        topic=placement.topic.encode(),
        queue_id=placement.queue_id,
        flag=flag,
        sys_flag=header.sys_flag,
        born_at_ms=header.born_timestamp,
        born_host=born_host,
        store_host=store_host,
        reconsume_times=header.reconsume_times,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
    )

"""Facts about queues and groups that brokers report and messages do not contain.

They are read after the messages: a message below the lowest offset has expired, even if retention
took it during the read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import GroupNotFoundError
from kourou.model.topic import dlq_topic, retry_topic
from kourou.protocol.codes import ResponseCode

QUEUES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int64()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("committed", pa.map_(pa.string(), pa.int64())),
    ]
)
"""A queue: its offsets, and the committed offset of each group that has one."""


@dataclass(frozen=True)
class Facts:
    """Offsets that brokers report.

    Attributes:
        queues: rows of `QUEUES`, of the audited topics and the retry topics of the groups.
        retry_topics: the retry topic of each group that has one.
        dead_letter_topics: the dead-letter topic of each group that has one.
    """

    queues: pa.Table
    retry_topics: dict[str, str]
    dead_letter_topics: dict[str, str]

    @staticmethod
    def none() -> Facts:
        """Return no facts: for plans, and for stores without a broker."""
        return Facts(QUEUES.empty_table(), {}, {})


async def sample(
    name_server: str, topics: Sequence[str], groups: Sequence[str], config: AdminConfig
) -> Facts:
    """Ask the brokers; offsets of groups first, so that no retry is missed.

    A consumer stores a failed message in the retry topic before it commits the offset.

    Raises:
        GroupNotFoundError: no broker has one of the groups.
        KourouError: no server answered, or one refused.
    """
    async with AdminClient(name_server, config=config) as admin:
        described = await admin.describe_groups(groups) if groups else []
        missing = set(groups) - {one.group for one in described}
        if missing:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker has the group {min(missing)}",
            )
        present = set(await admin.topic_list()) if groups else set()
        retries = {group: retry_topic(group) for group in groups if retry_topic(group) in present}
        dead = {group: dlq_topic(group) for group in groups if dlq_topic(group) in present}
        committed: dict[tuple[str, str, int], dict[str, int]] = {}
        for one in described:
            for queue, offset in one.offsets.items():
                key = (queue.topic, queue.broker_name, queue.queue_id)
                committed.setdefault(key, {})[one.group] = offset.consumer_offset
        rows = []
        for topic in (*topics, *retries.values()):
            for queue, bounds in (await admin.topic_stats(topic)).offsets.items():
                key = (topic, queue.broker_name, queue.queue_id)
                rows.append((*key, bounds.min_offset, bounds.max_offset, committed.get(key, {})))
    names = QUEUES.names
    table = pa.Table.from_pylist(
        [
            {**dict(zip(names, row, strict=True)), "committed": list(row[-1].items())}
            for row in rows
        ],
        schema=QUEUES,
    )
    return Facts(table, retries, dead)

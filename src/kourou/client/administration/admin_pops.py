"""AdminClient methods for groups that pop: their modes, and the progress of revival.

The lag of revival is part of a Kourou broker's runtime information. For a Java broker it is the
number of records after the offset that its revival has committed; the time is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from kourou.client.administration import admin_clients, admin_groups
from kourou.client.administration.admin_brokers import broker_config, runtime_info
from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.plain_names import own_entries
from kourou.errors import ConsumerNotOnlineError, RemoteError
from kourou.model.group import ConsumeType, MessageModel
from kourou.model.topic import check_group, is_retry_topic
from kourou.protocol.codes import RequestCode
from kourou.protocol.connections import ConsumerConnection
from kourou.protocol.popping.topic_names import REVIVE_GROUP, revive_topic
from kourou.protocol.queue_assignment import MessageRequestMode, decode_message_request_modes

_DEFAULT_MODE_KEY = "defaultMessageRequestMode"


@dataclass(frozen=True, slots=True)
class TopicMode:
    """Mode in which the members of a group read a topic, if a broker assigns their queues.

    Attributes:
        mode: pull or pop.
        share_queues: with pop, the number of other members that read a member's queues; 0: all.
        is_set: whether it was set for the group; otherwise it is the broker's default.
    """

    topic: str
    broker_name: str
    mode: MessageRequestMode
    share_queues: int = 0
    is_set: bool = False


@dataclass(frozen=True, slots=True)
class ReviveLag:
    """Lag of a broker with making messages visible again.

    Attributes:
        messages: due checkpoints and acks that are not handled.
        behind_ms: time for which the first one has been due; None if the broker does not report it.
    """

    messages: int
    behind_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupPops:
    """Modes, live members and revive lags of a group that may pop.

    Attributes:
        consume_type: that of the live members; None if there are none.
        message_model: that of the live members; None if there are none.
        modes: by topic and broker, sorted; no retry topics.
        revive_lags: by broker name; all groups of a broker share them.
    """

    group: str
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    modes: tuple[TopicMode, ...] = ()
    revive_lags: Mapping[str, ReviveLag] = field(default_factory=dict)

    @property
    def has_pop_mode(self) -> bool:
        """Whether a broker assigns a topic to its members for pop."""
        return any(one.mode is MessageRequestMode.POP for one in self.modes)


class PopAdmin(AdminCalls):
    """Describes groups that pop."""

    async def group_pops(self, group: str) -> GroupPops:
        """Return the modes of a group, what its live members do, and the lag of revival.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group)
        info = await self.cluster_info()
        masters = await self._masters()
        live, modes, lags = await asyncio.gather(
            call_all(masters, lambda server: live_consumers(server, group)),
            asyncio.gather(*(self._modes(name, one, group) for name, one in masters.items())),
            asyncio.gather(
                *(revive_lag(one, info.brokers[name].cluster) for name, one in masters.items())
            ),
        )
        first = next((one for one in live.values() if one is not None), None)
        return GroupPops(
            group,
            None if first is None else first.consume_type,
            None if first is None else first.message_model,
            tuple(
                sorted(
                    (mode for part in modes for mode in part),
                    key=lambda mode: (mode.topic, mode.broker_name),
                )
            ),
            dict(zip(masters, lags, strict=True)),
        )

    async def _modes(self, name: str, server: Server, group: str) -> list[TopicMode]:
        """Return the modes in which one broker assigns the topics of the group."""
        body, config, stats, live = await asyncio.gather(
            server.request_body(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
            broker_config(server),
            admin_groups.consume_stats(server, group),
            live_consumers(server, group),
        )
        table = own_entries(
            self._config.namespace, decode_message_request_modes(body).message_request_mode_map
        )
        known = {topic: groups[group] for topic, groups in table.items() if group in groups}
        is_pop = config.get(_DEFAULT_MODE_KEY) == MessageRequestMode.POP
        default = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        topics = {queue.topic for queue in stats.offsets} | known.keys()
        if live is not None:
            topics |= live.subscriptions.keys()
        return [
            TopicMode(topic, name, known[topic].mode, known[topic].pop_share_queue_num, True)
            if topic in known
            else TopicMode(topic, name, default)
            for topic in topics
            if not is_retry_topic(topic)
        ]


async def live_consumers(server: Server, group: str) -> ConsumerConnection | None:
    """Return the live members of a group on one broker; None if it has none."""
    try:
        return await admin_clients.consumer_connection(server, group)
    except ConsumerNotOnlineError:
        return None


async def revive_lag(server: Server, cluster: str) -> ReviveLag:
    """Return the lag of revival of one broker of a cluster."""
    info = await runtime_info(server)
    messages, behind_ms = info.get("kourouReviveBehindMessages"), info.get("kourouReviveBehindMs")
    if messages is not None and behind_ms is not None:
        return ReviveLag(int(messages), int(behind_ms))
    try:
        stats = await admin_groups.consume_stats(server, REVIVE_GROUP, revive_topic(cluster))
    except RemoteError:
        return ReviveLag(0)
    # The committed offset is that of the last record that was handled; 0 also if there is none.
    return ReviveLag(
        sum(max(0, at.broker_offset - at.consumer_offset - 1) for at in stats.offsets.values())
    )

"""Handlers of client membership requests: heartbeat, unregister, config check, member list.

Source: ClientManageProcessor.java, ConsumerManageProcessor.java,
DefaultConsumerIdsChangeListener.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from kourou.broker.clients import ConsumerGroup, Member
from kourou.broker.consuming.retry_topics import ensure_retry_topic
from kourou.broker.context import BrokerContext
from kourou.broker.groups import Groups
from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.consumer_filters import compile_expression
from kourou.broker.pulling.message_filters import filters_off_remark, is_tag_expression
from kourou.broker.subscriptions import Subscriptions
from kourou.errors import FilterSyntaxError, RemoteSystemError
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.topic import retry_topic
from kourou.protocol.clients import (
    GetConsumerListByGroupRequestHeader,
    HeartbeatResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
    decode_check_client_config,
    decode_heartbeat,
    encode_consumer_list,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request, response
from kourou.remoting.connection import Request
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Members of a group whose every change is announced at once."""
_NOTIFIED_PER_S: Final = 10_000
"""Members of one larger group that are notified each second: a third of a core's time at most."""


class ConsumerIdsNotifier:
    """Tells the members of a changed group to rebalance (code 40).

    Members are notified at once, or by the next `flush` where `realTimeNotifyConsumerChange` is
    off. After a notification of more than `_AT_ONCE` members, the changes of the next
    milliseconds are announced together: otherwise thousands of members that join one after the
    other would cost the square of their number. Broadcasting groups are not notified, because
    each member reads all queues. Nor are groups for which the broker's or the group's
    `notifyConsumerIdsChangedEnable` is off.

    Args:
        groups: source of the groups' settings.
        config: the broker's options; None notifies members at once.
    """

    def __init__(self, groups: Groups, config: LiveConfig | None = None) -> None:
        self._groups = groups
        self._config = config
        self._changed: dict[str, ConsumerGroup] = {}
        self._pauses: dict[str, ConsumerGroup | None] = {}  # and what has changed since

    def __call__(self, live: ConsumerGroup) -> None:
        """Send the one-way request to each member, now, after the pause or with `flush`."""
        config = self._config.current if self._config is not None else None
        if config is not None and not config.real_time_notify_consumer_change:
            self._changed[live.name] = live
        elif live.name in self._pauses:
            self._pauses[live.name] = live
        else:
            self._notify(live)

    def flush(self) -> None:
        """Notify the members of all groups that changed since the last call, made every 15 s."""
        changed, self._changed = self._changed, {}
        for live in changed.values():
            self._notify(live)

    def _notify(self, live: ConsumerGroup) -> None:
        if live.message_model is MessageModel.BROADCASTING:
            return
        if self._config is not None and not self._config.current.notify_consumer_ids_changed_enable:
            return
        group = self._groups.get(live.name)
        if group is not None and not group.notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequestHeader(live.name)
        members = list(live.members)
        for peer in members:
            peer.send(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True))
        if len(members) > _AT_ONCE:
            self._pauses[live.name] = None
            pause_s = len(members) / _NOTIFIED_PER_S
            asyncio.get_running_loop().call_later(pause_s, self._end_pause, live.name)

    def _end_pause(self, name: str) -> None:
        live = self._pauses.pop(name)
        if live is not None:
            self._notify(live)


class ClientHandlers:
    """Serves HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG and GET_CONSUMER_LIST_BY_GROUP."""

    def __init__(self, context: BrokerContext, subscriptions: Subscriptions) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            subscriptions: receives the subscriptions of consumers.
        """
        self._config = context.live_config
        self._clients = context.clients
        self._groups = context.groups
        self._topics = context.topics
        self._subscriptions = subscriptions
        self._later = context.later

    def on_heartbeat(self, request: Request) -> RemotingCommand | None:
        """Register the client in its groups, and create retry topics for its consumer groups.

        A heartbeat of the newer form, with a fingerprint, may leave the subscriptions out. The
        answer asks the client to send them again when another member replaced them, as in Java,
        and also when the broker does not have them, as after a restart: otherwise the client's
        pulls would be refused for ever.

        A client asks for the route of its retry topic after its first heartbeat, and then only
        every 30 s. Therefore a heartbeat that created a retry topic is answered only when the
        name servers know the topic.
        """
        command = request.command
        heartbeat = decode_heartbeat(command.body)
        member = Member(
            heartbeat.client_id,
            request.connection,
            command.language,
            command.version,
            steady_ms(),
        )
        self._clients.check(member, heartbeat)  # before anything is created or registered
        must_send = heartbeat.fingerprint == 0
        is_new = False  # a retry topic was created; the name servers must learn of it first
        host = request.remote_address[0]
        self._subscriptions.begin_heartbeat()
        for data in heartbeat.consumers:
            group = self._groups.get_or_create(data.group, host)
            if group is None:
                log.info("heartbeat.group_unknown group=%s client=%s", data.group, member.client_id)
                continue
            is_new |= self._ensure_retry_topic(group, host, unit_mode=data.unit_mode)
            must_send |= self._subscriptions.update(
                member,
                data,
                fingerprint=heartbeat.fingerprint,
                without_sub=heartbeat.without_sub,
            )
        for name in heartbeat.producers:
            self._clients.register_producer(member, name)
        answer = response(command, header=HeartbeatResponseHeader(True, must_send))
        if not is_new or self._topics.is_announced():
            return answer
        self._later.answer(request, partial(self._answer_when_announced, answer))
        return None

    async def _answer_when_announced(self, answer: RemotingCommand) -> RemotingCommand:
        await self._topics.wait_announced()
        return answer

    def _ensure_retry_topic(self, group: SubscriptionGroup, host: str, *, unit_mode: bool) -> bool:
        """Create the group's retry topic if it is missing, and return whether it was created.

        If it cannot be created, the failure is logged and the group may still consume.
        """
        if group.retry_queue_nums <= 0 or self._topics.get(retry_topic(group.group_name)):
            return False
        try:
            ensure_retry_topic(self._topics, group, host, unit_mode=unit_mode)
        except RemoteSystemError as error:
            log.warning("retry_topic.refused reason=%s", error.remark)
            return False
        return True

    def on_unregister_client(self, request: Request) -> RemotingCommand:
        """Remove the client from the groups that the request names."""
        header = request.command.header(UnregisterClientRequestHeader)
        if header.producer_group:
            self._clients.unregister_producer(request.connection, header.producer_group)
        if header.consumer_group:
            self._clients.unregister_consumer(request.connection, header.consumer_group)
        return response(request.command)

    def on_check_client_config(self, request: Request) -> RemotingCommand:
        """Check whether the broker can serve a subscription, before its client joins the group."""
        subscription = decode_check_client_config(request.command.body).subscription
        kind = subscription.expression_type
        if is_tag_expression(kind):
            return response(request.command)
        if not self._config.current.enable_property_filter:
            return response(request.command, ResponseCode.SYSTEM_ERROR, filters_off_remark(kind))
        try:
            compile_expression(kind, subscription.sub_string)
        except FilterSyntaxError as error:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
            return response(request.command, code, str(error))
        return response(request.command)

    def on_get_consumer_list_by_group(self, request: Request) -> RemotingCommand:
        """Return the client ids of the group's members; code 1 if it has none."""
        header = request.command.header(GetConsumerListByGroupRequestHeader)
        live = self._clients.consumer_group(header.consumer_group)
        if live is None:
            text = f"no consumer for this group, {header.consumer_group}"
            return response(request.command, ResponseCode.SYSTEM_ERROR, text)
        return response(request.command, body=encode_consumer_list(live.client_ids()))

    def expire(self) -> None:
        """Remove and disconnect clients whose heartbeats ceased; to be called every 10 s."""
        for peer in self._clients.expire(steady_ms()):
            log.info("client.expired peer=%s", peer.remote_address)
            peer.close("the client sent no heartbeat within channelExpiredTimeout")

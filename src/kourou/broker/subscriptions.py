"""Subscriptions of connected groups: updated by heartbeats, and requested from outdated members.

A pull names the version of its member's subscription. If that is newer than the version held here,
serving the pull could deliver messages that the member no longer subscribes to. Java's broker
refuses such a pull (25, 28), the client retries it after 3 s, and expects its next heartbeat to
carry the newer version. But Java's client gives a subscription a new version at each rebalance, and
skips the heartbeat that would carry it if another heartbeat is under way; both are due one second
after its start. Then its queues are not consumed until the next full heartbeat: for 30 s, or for
ever if heartbeats leave the subscriptions out. Therefore the pull is held here while the broker
asks the member for its running info (307), which contains its subscriptions.

Source: ConsumerManager.java, RebalancePushImpl.java, MQClientInstance.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kourou.broker.client_calls import RELAY_VERSION_MIN
from kourou.broker.clients import CallClient, Clients, Member, Peer
from kourou.broker.consuming.retry_topics import TopicTable
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.errors import ProtocolError, RemoteError, TransportError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.running_info import (
    GetConsumerRunningInfoRequestHeader,
    decode_consumer_running_info,
)

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 3.0
"""Time-out of that request, during which pulls are held; Java's clients wait at least 10 s."""


class Subscriptions:
    """Applies the subscriptions of members to the client table, the filters and held pulls."""

    def __init__(
        self,
        clients: Clients,
        topics: TopicTable,
        filters: ConsumerFilters,
        held: HeldPulls,
        call_client: CallClient,
    ) -> None:
        """Store subscriptions in `clients` and `filters`.

        Args:
            clients: the connected clients.
            topics: the topics whose held pulls are looked up.
            filters: registers subscriptions by properties.
            held: held pulls, answered when the subscription of their group changes.
            call_client: sends a request to a member.
        """
        self._clients = clients
        self._topics = topics
        self._filters = filters
        self._held = held
        self._call_client = call_client
        self._requests: dict[tuple[Peer, str], asyncio.Task[None]] = {}

    def begin_heartbeat(self) -> None:
        """See `ConsumerFilters.begin_heartbeat`; call once before the `update`s of a request."""
        self._filters.begin_heartbeat()

    def update(
        self, member: Member, data: ConsumerData, *, fingerprint: int = 0, without_sub: bool = False
    ) -> bool:
        """Register a member and its subscriptions; serve held pulls whose subscription changed.

        Arguments, result and errors are those of `Clients.register_consumer`.
        """
        if without_sub:
            return self._clients.register_consumer(
                member, data, fingerprint=fingerprint, without_sub=True
            )
        before = dict(self._subscriptions_of(data.group))
        must_send = self._clients.register_consumer(member, data, fingerprint=fingerprint)
        is_all = self._filters.register(
            data.group, self._subscriptions_of(data.group).values(), member.peer.remote_address[0]
        )
        self._serve_changed(data.group, before)
        return must_send or not is_all

    def request_from_member(
        self, peer: Peer, group: str, topic: str, then: Callable[[], None]
    ) -> bool:
        """Ask a member for its subscriptions, apply the answer, and call `then`.

        While one request to a member is under way, no second one is sent. `then` is called even if
        no answer came within `ASK_TIMEOUT_S`, or one without the topic; it is not called when the
        broker stops. It must not raise.

        Returns:
            False if nothing was sent: the connection is no member of the group, or the client's
            version does not support the request.
        """
        live = self._clients.consumer_group(group)
        member = live.members.get(peer) if live is not None else None
        if member is None or member.version < RELAY_VERSION_MIN:
            return False
        task = self._requests.get((peer, group))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._request(member, group, topic))
            self._requests[peer, group] = task
            task.add_done_callback(lambda _: self._requests.pop((peer, group)))
        task.add_done_callback(lambda task: None if task.cancelled() else then())
        return True

    def close(self) -> None:
        """Cancel all requests that are under way."""
        for task in self._requests.values():
            task.cancel()

    async def _request(self, member: Member, group: str, topic: str) -> None:
        header = GetConsumerRunningInfoRequestHeader(group, member.client_id)
        asked = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        try:
            answer = await self._call_client(member.peer, asked, ASK_TIMEOUT_S)
            raise_for_response(answer)
            subscriptions = decode_consumer_running_info(answer.body).subscriptions
            self._apply_answer(member, group, topic, subscriptions)
        except (TransportError, ProtocolError, RemoteError) as error:
            log.info(
                "subscription.not_told group=%s client=%s reason=%s", group, member.client_id, error
            )

    def _apply_answer(
        self, member: Member, group: str, topic: str, subscriptions: Sequence[SubscriptionData]
    ) -> None:
        """Apply the subscriptions from a member's answer, unless it left in the meantime.

        Raises:
            ProtocolError: they do not contain `topic`.
        """
        live = self._clients.consumer_group(group)
        if live is None or member.peer not in live.members:
            return
        if all(one.topic != topic for one in subscriptions):
            raise ProtocolError(f"the answer contains no subscription to topic {topic}")
        data = ConsumerData(
            group, live.consume_type, live.message_model, live.consume_from_where, subscriptions
        )
        self.begin_heartbeat()
        self.update(live.members[member.peer], data, fingerprint=live.fingerprint)
        log.info("subscription.told group=%s client=%s", group, member.client_id)

    def _subscriptions_of(self, group: str) -> Mapping[str, SubscriptionData]:
        live = self._clients.consumer_group(group)
        return {} if live is None else live.subscriptions

    def _serve_changed(self, group: str, before: Mapping[str, SubscriptionData]) -> None:
        """Answer the group's held pulls for topics whose subscription changed.

        They are held until a message matches the old subscription.
        """
        for name, wanted in self._subscriptions_of(group).items():
            old, topic = before.get(name, wanted), self._topics.get(name)
            is_other = (old.sub_string, old.expression_type) != (
                wanted.sub_string,
                wanted.expression_type,
            )
            if is_other and topic is not None:
                self._held.on_subscription_changed(group, topic)

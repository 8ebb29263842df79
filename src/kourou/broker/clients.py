"""Table of connected producers and consumers by group, as registered by their heartbeats.

The table does no I/O and has no clock. `client_handlers.py` receives the heartbeats and notifies
groups of changes. A member of a group is a connection with a client id. It leaves the group when
it unregisters, when the connection closes, or when its heartbeats cease.

Source: ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java, apache/rocketmq 5.5.0.
There are two differences, both for the benefit of rebalancing clients: a client that reconnects
before its old connection is closed is listed once, and a group is also notified when a member
leaves because its heartbeats ceased.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from kourou.broker.member_subscriptions import MemberSubscriptions
from kourou.errors import InvalidParameterError, SystemBusyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData, HeartbeatData
from kourou.protocol.command import RemotingCommand

log = logging.getLogger(__name__)

CONSUMER_GROUPS_MAX: Final = 200
"""Most consumer groups of one client. Each may create a group and a retry topic."""
PRODUCER_GROUPS_MAX: Final = 2000
"""Most producer groups of one client."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Most topics that one group may subscribe to. They are held while the group has a member."""
SUBSCRIPTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""Most memory for the subscriptions of all groups, estimated; a usual one takes 700 bytes."""
NAME_LENGTH_MAX: Final = 1024
"""Most characters of a client id and of a producer group; ids of Java clients have about 50."""


class Peer(Protocol):
    """A client's connection, as far as the broker uses it to reach the client.

    Compared by identity.
    """

    @property
    def remote_address(self) -> tuple[str, int]: ...

    def send(self, command: RemotingCommand) -> None: ...

    def close(self, reason: str) -> None: ...


CallClient = Callable[[Peer, RemotingCommand, float], Awaitable[RemotingCommand]]
"""Sends a request to a client and returns its answer; see `Connection.request`."""


@dataclass(slots=True, eq=False)
class Member:
    """One connection in one group.

    Attributes:
        language: the code of the client's language, see `LanguageCode`.
        version: the client's release, as numbered by RocketMQ's MQVersion.
        seen_at_ms: time of its last heartbeat, on the caller's clock.
    """

    client_id: str
    peer: Peer
    language: int
    version: int
    seen_at_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The connected consumers of a group; removed with its last member.

    Attributes:
        members: in the order in which they joined.
        subscriptions: by topic; all members of a group must have the same subscriptions.
        fingerprint: of the heartbeat that carried `subscriptions`; 0 if it had none.
        size_bytes: estimated memory of `subscriptions`.
        member_subscriptions: the subscriptions of each member, to detect members that differ.
    """

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0
    size_bytes: int = 0
    member_subscriptions: MemberSubscriptions = field(default_factory=MemberSubscriptions)

    def client_ids(self) -> list[str]:
        """Return the distinct ids of the members, in the order in which they joined."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


@dataclass(slots=True)
class _Memberships:
    """The groups of one connection, so that its close needs no search over all groups."""

    consumer: set[str] = field(default_factory=set)
    producer: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.consumer or self.producer)


class Clients:
    """All connected producers and consumers, by group.

    Attributes:
        on_emptied: called with the name of each consumer group whose last member left. Must not
            raise.
    """

    def __init__(
        self,
        on_changed: Callable[[ConsumerGroup], None],
        *,
        clients_max: int = 100_000,
        expiry_ms: int = 120_000,
    ) -> None:
        """Create an empty table.

        Args:
            on_changed: called with each consumer group whose members or subscribed topics changed,
                after the change, unless no member is left. Must not raise.
            clients_max: most memberships, over all groups.
            expiry_ms: a member that sends no heartbeat for longer is removed by `expire`.
        """
        self.on_emptied: Callable[[str], None] = lambda _group: None
        self._on_changed = on_changed
        self._clients_max = clients_max
        self._expiry_ms = expiry_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        self._producer_ids: dict[str, Member] = {}  # client id -> member with the latest heartbeat
        self._groups_of: dict[Peer, _Memberships] = {}
        self._count = 0
        self._subscription_bytes = 0

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the group; None if no consumer of it is connected."""
        return self._consumers.get(group)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return all consumer groups with connected members."""
        return list(self._consumers.values())

    def all_producers(self) -> Iterator[Member]:
        """Yield each connected producer, once for each of its groups."""
        for members in self._producers.values():
            yield from members.values()

    def producer(self, client_id: str) -> Member | None:
        """Return the producer with this id; of two connections, the one with the latest heartbeat.

        None if there is none.
        """
        return self._producer_ids.get(client_id)

    def member(self, group: str, client_id: str) -> Member | None:
        """Return the consumer with this id; of two with the same id, the one that joined later.

        None if there is none.
        """
        live = self._consumers.get(group)
        if live is None:
            return None
        found = [one for one in live.members.values() if one.client_id == client_id]
        return found[-1] if found else None

    def subscribers(self, topic: str) -> list[str]:
        """Return the connected consumer groups that subscribe to the topic."""
        return [name for name, live in self._consumers.items() if topic in live.subscriptions]

    def producer_groups(self) -> list[str]:
        """Return the groups that have connected producers."""
        return list(self._producers)

    def producers(self, group: str) -> list[Member]:
        """Return the connected producers of the group."""
        return list(self._producers.get(group, {}).values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to the topic; None if it has none."""
        live = self._consumers.get(group)
        return live.subscriptions.get(topic) if live is not None else None

    def check(self, member: Member, heartbeat: HeartbeatData) -> None:
        """Check that all groups of a heartbeat can be registered; change nothing.

        Each group is checked alone. Groups that fit alone but not together pass here; then
        registering the last of them fails.

        Raises:
            SystemBusyError, InvalidParameterError: as `register_consumer`, `register_producer`.
        """
        for kind, groups, most in (
            ("consumer", heartbeat.consumers, CONSUMER_GROUPS_MAX),
            ("producer", heartbeat.producers, PRODUCER_GROUPS_MAX),
        ):
            if len(groups) > most:
                raise InvalidParameterError(
                    29,
                    f"client {heartbeat.client_id[:NAME_LENGTH_MAX]} is in {len(groups)} {kind} "
                    f"groups; at most {most} are allowed: use several clients",
                )
        for data in heartbeat.consumers:
            self._check_consumer(member, data)
        for group in heartbeat.producers:
            self._check_producer(member, group)

    def register_consumer(
        self, member: Member, data: ConsumerData, *, fingerprint: int = 0, without_sub: bool = False
    ) -> bool:
        """Register a consumer in its group, or renew it, from one heartbeat.

        Args:
            member: the connection, with the time of the heartbeat.
            data: the group and its subscriptions.
            fingerprint: of the heartbeat's content; 0 in the older form.
            without_sub: the client left its subscriptions out because they did not change.

        Returns:
            Whether the client must send its subscriptions with the next heartbeat: those held here
            are not the client's, or another member replaced them.

        Raises:
            SystemBusyError: the limit of clients or of subscription bytes is reached.
            InvalidParameterError: the group has too many subscriptions, or the client id is too
                long. Nothing changed.
        """
        self._check_consumer(member, data)
        live = self._consumers.get(data.group)
        if live is None:
            live = self._consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
        live.consume_type = data.consume_type
        live.message_model = data.message_model
        live.consume_from_where = data.consume_from_where
        is_changed = self._join(live.members, member)
        self._groups_of.setdefault(member.peer, _Memberships()).consumer.add(data.group)
        if without_sub:
            must_send = live.fingerprint != fingerprint
        else:
            must_send = live.fingerprint not in (0, fingerprint)
            live.fingerprint = fingerprint
            live.member_subscriptions.update(
                data.group, member.peer, member.client_id, data.subscriptions
            )
            is_changed |= _update_subscriptions(live, data.subscriptions)
            self._subscription_bytes -= live.size_bytes
            live.size_bytes = sum(map(_size_bytes, live.subscriptions.values()))
            self._subscription_bytes += live.size_bytes
        if is_changed:
            log.info("consumer_group.changed group=%s members=%d", data.group, len(live.members))
            self._on_changed(live)
        return must_send

    def register_producer(self, member: Member, group: str) -> None:
        """Register a producer in the group, or renew it, from one heartbeat.

        Raises:
            SystemBusyError: the limit of clients is reached.
            InvalidParameterError: the client id or the group's name is too long.
        """
        self._check_producer(member, group)
        members = self._producers.setdefault(group, {})
        existing = members.get(member.peer)
        self._join(members, member)
        self._groups_of.setdefault(member.peer, _Memberships()).producer.add(group)
        if existing is not None and existing.client_id != member.client_id:
            self._remove_producer_id(existing)
        self._producer_ids[member.client_id] = member

    def unregister_consumer(self, peer: Peer, group: str) -> None:
        """Remove the connection from the consumer group; does nothing if it is no member."""
        live = self._consumers.get(group)
        if live is None or live.members.pop(peer, None) is None:
            return
        self._remove_membership(peer, self._groups_of[peer].consumer, group)
        live.member_subscriptions.remove(group, peer)
        if not all(map(live.member_subscriptions.contains, live.subscriptions.values())):
            live.fingerprint = 0  # has the remaining members send their subscriptions again
        log.info("consumer_group.changed group=%s members=%d", group, len(live.members))
        if live.members:
            self._on_changed(live)
        else:
            del self._consumers[group]
            self._subscription_bytes -= live.size_bytes
            self.on_emptied(group)

    def unregister_producer(self, peer: Peer, group: str) -> None:
        """Remove the connection from the producer group; does nothing if it is no member."""
        members = self._producers.get(group)
        left = None if members is None else members.pop(peer, None)
        if members is None or left is None:
            return
        self._remove_membership(peer, self._groups_of[peer].producer, group)
        if not members:
            del self._producers[group]
        self._remove_producer_id(left)

    def remove_connection(self, peer: Peer) -> None:
        """Remove a closed connection from all its groups."""
        groups = self._groups_of.get(peer)
        if groups is None:
            return
        for group in sorted(groups.consumer):
            self.unregister_consumer(peer, group)
        for group in sorted(groups.producer):
            self.unregister_producer(peer, group)

    def expire(self, now_ms: int) -> list[Peer]:
        """Remove the members whose heartbeats ceased, and return their connections, each once."""
        before = now_ms - self._expiry_ms
        silent: dict[Peer, None] = {}
        for live in list(self._consumers.values()):
            for peer in _silent(live.members.values(), before):
                self.unregister_consumer(peer, live.name)
                silent[peer] = None
        for group, members in list(self._producers.items()):
            for peer in _silent(members.values(), before):
                self.unregister_producer(peer, group)
                silent[peer] = None
        return list(silent)

    def _check_consumer(self, member: Member, data: ConsumerData) -> None:
        """Raise the errors of `register_consumer`."""
        _check_length("client id", member.client_id)
        if len(data.subscriptions) > SUBSCRIPTIONS_MAX:
            raise InvalidParameterError(
                29,
                f"group {data.group} subscribes to {len(data.subscriptions)} topics; at most "
                f"{SUBSCRIPTIONS_MAX} are allowed: split it into several groups",
            )
        size_bytes = sum(map(_size_bytes, data.subscriptions))
        self._check_room(self._consumers.get(data.group), member.peer, size_bytes)

    def _check_producer(self, member: Member, group: str) -> None:
        """Raise the errors of `register_producer`."""
        _check_length("client id", member.client_id)
        _check_length("producer group", group)
        members = self._producers.get(group)
        if members is None or member.peer not in members:
            self._check_count()

    def _check_room(self, live: ConsumerGroup | None, peer: Peer, size_bytes: int) -> None:
        """Check the limits of clients and of subscription bytes for one heartbeat."""
        if live is None or peer not in live.members:
            self._check_count()
        held_bytes = self._subscription_bytes - (live.size_bytes if live is not None else 0)
        if size_bytes and held_bytes + size_bytes > SUBSCRIPTION_BYTES_MAX:
            raise SystemBusyError(
                2,
                f"the subscriptions of other groups take {held_bytes} bytes; {size_bytes} more "
                f"exceed the limit of {SUBSCRIPTION_BYTES_MAX}",
            )

    def _check_count(self) -> None:
        if self._count >= self._clients_max:
            raise SystemBusyError(
                2, f"{self._count} clients are registered, which is the limit (clientsMax)"
            )

    def _join(self, members: dict[Peer, Member], member: Member) -> bool:
        """Add or replace the member, and return whether it is new or has a new client id."""
        existing = members.get(member.peer)
        members[member.peer] = member
        if existing is None:
            self._count += 1
        return existing is None or existing.client_id != member.client_id

    def _remove_producer_id(self, left: Member) -> None:
        """Remove the producer id of a connection that left a group.

        The id stays if the connection is in another producer group with the same id.
        """
        held = self._producer_ids.get(left.client_id)
        if held is None or held.peer is not left.peer:
            return
        groups = self._groups_of.get(left.peer)
        for group in groups.producer if groups is not None else ():
            if self._producers[group][left.peer].client_id == left.client_id:
                return
        del self._producer_ids[left.client_id]

    def _remove_membership(self, peer: Peer, groups: set[str], group: str) -> None:
        """Remove `group` from `groups`, and decrease the number of memberships."""
        self._count -= 1
        groups.remove(group)
        if not self._groups_of[peer]:
            del self._groups_of[peer]


def _update_subscriptions(live: ConsumerGroup, received: Collection[SubscriptionData]) -> bool:
    """Replace the group's subscriptions, and return whether topics were added or removed.

    A subscription with an older version does not replace the held one while a member still has
    the held one, because heartbeats of two members may cross. Once no member has it, any version
    replaces it: versions are times of the members' clocks, and a member whose clock is behind
    might never exceed the version of a member that left.
    """
    topics = {subscription.topic for subscription in received}
    is_changed = topics != live.subscriptions.keys()
    for topic in live.subscriptions.keys() - topics:
        del live.subscriptions[topic]
    for subscription in received:
        held = live.subscriptions.get(subscription.topic)
        is_newer = held is None or subscription.sub_version > held.sub_version
        if is_newer or not live.member_subscriptions.contains(
            live.subscriptions[subscription.topic]
        ):
            live.subscriptions[subscription.topic] = subscription
    return is_changed


def _size_bytes(subscription: SubscriptionData) -> int:
    """Return the estimated memory of a subscription."""
    tags = subscription.tags_set
    texts = len(subscription.topic) + len(subscription.sub_string) + sum(map(len, tags))
    return 500 + texts + 100 * (len(tags) + len(subscription.code_set))


def _check_length(what: str, name: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidParameterError(
            29, f"a {what} of {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
        )


def _silent(members: Iterable[Member], before: int) -> list[Peer]:
    return [member.peer for member in members if member.seen_at_ms < before]

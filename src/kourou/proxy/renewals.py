"""Automatic renewal of the invisible time of messages that clients are handling; pure.

A push consumer receives messages with a short invisible time. The proxy extends it until the client
acknowledges the message, changes its invisible time or leaves. The client keeps its first handle:
the message's current one is found by message id, broker, queue and offset.

    add ─▶ held ─due─▶ renewing ─renewed─▶ held ...      take: acknowledged, changed
             │             └─failed─▶ held, or dropped   release: the client left
             └─ after 3 h: one last change, to the group's retry delay, then dropped
    put_back: what the client asked for failed, and it may ask again, until the message is visible

A message that is taken while its renewal is in progress keeps the receipt that the renewal
returns: the caller waits for the end of the renewal, and then acknowledges with that receipt. It is
never renewed again.

Handles are kept in buckets by the second in which they are due, so that a message that is
acknowledged in time costs two dict entries and no scan.

Source: DefaultReceiptHandleManager.java, ReceiptHandleGroup.java, RenewStrategyPolicy.java,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from kourou.protocol.popping.receipt_handles import ReceiptHandle

_BUCKET_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RenewalPolicy:
    """Times and limits of renewals.

    Attributes:
        ahead_ms: a renewal starts this long before the message becomes visible.
        steps_ms: invisible time by number of earlier renewals; the last one repeats.
        held_ms_max: time since the pop after which a message is not renewed any more.
        retries_max: failed renewals in a row, after which a message is dropped.
        retry_ms: time between a failed renewal and the next one.
        release_ms: invisible time of messages whose client left.
        handles_max: handles of all clients; further messages are not renewed.
    """

    ahead_ms: int = 10_000
    steps_ms: tuple[int, ...] = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
    held_ms_max: int = 10_800_000
    retries_max: int = 3
    retry_ms: int = 5_000
    release_ms: int = 1_000
    handles_max: int = 1_000_000


class ClientGroup(NamedTuple):
    """One client in one group."""

    client_id: str
    group: str


class _Key(NamedTuple):
    """Identifies a message among those of a client; the same for all handles of it."""

    message_id: str
    broker_name: str
    kind: str
    queue_id: int
    offset: int | None


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message that a client is handling.

    Attributes:
        client: holds it.
        topic: as the client received it.
        message_id: likewise.
        receipt: the current one.
        first_pop_ms: time of the pop, epoch milliseconds.
        reconsume_times: deliveries before this one.
        lite_topic: None unless the message belongs to one.
        renewals: successful ones.
        failures: failed ones since the last success.
        is_renewing: a renewal is in progress.
        is_taken: the client has acknowledged or changed it, or left.
        is_ending: it was taken before, and is neither renewed nor released.
    """

    client: ClientGroup
    topic: str
    message_id: str
    receipt: ReceiptHandle
    first_pop_ms: int
    _key: _Key
    reconsume_times: int = 0
    lite_topic: str | None = None
    renewals: int = 0
    failures: int = 0
    is_renewing: bool = False
    is_taken: bool = False
    is_ending: bool = False
    _bucket: int | None = None


class Renewal(NamedTuple):
    """A change of the invisible time to request from the broker.

    Attributes:
        message: whose receipt is to be used; skip it if it is taken in the meantime.
        invisible_ms: to request, from now on.
        is_last: the message is not held any more, whatever the result.
    """

    message: HeldMessage
    invisible_ms: int
    is_last: bool = False


class Renewals:
    """All messages that clients hold.

    Args:
        policy: times and limits.
        retry_delay_ms: returns the delay of the next redelivery, by group and number of
            deliveries before; None if the group does not exist.
    """

    def __init__(
        self, policy: RenewalPolicy, retry_delay_ms: Callable[[str, int], int | None]
    ) -> None:
        self._policy = policy
        self._retry_delay_ms = retry_delay_ms
        self._by_client: dict[ClientGroup, dict[_Key, HeldMessage]] = {}
        self._buckets: dict[int, dict[int, HeldMessage]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of held messages."""
        return self._count

    def count(self, client: ClientGroup) -> int:
        """Return the number of messages that the client holds in the group."""
        return len(self._by_client.get(client, ()))

    def add(
        self,
        client: ClientGroup,
        topic: str,
        message_id: str,
        receipt: ReceiptHandle,
        reconsume_times: int = 0,
        lite_topic: str | None = None,
    ) -> bool:
        """Hold a message that was sent to a client; return False if there is no room.

        An earlier delivery of the same message to the client is replaced.
        """
        held = self._by_client.get(client, {})
        key = _key(message_id, receipt)
        earlier = held.get(key)
        if earlier is not None:
            self._remove(earlier)
        elif self._count >= self._policy.handles_max:
            return False
        message = HeldMessage(
            client,
            topic,
            message_id,
            receipt,
            receipt.pop_time_ms,
            key,
            reconsume_times,
            lite_topic,
        )
        self._by_client.setdefault(client, held)[key] = message
        self._count += 1
        self._schedule(message, receipt.revive_at_ms - self._policy.ahead_ms)
        return True

    def take(
        self, client: ClientGroup, message_id: str, receipt: ReceiptHandle
    ) -> HeldMessage | None:
        """Stop to hold a message that the client acknowledges or changes.

        Args:
            client: of the request.
            message_id: likewise.
            receipt: likewise; any of the message's receipts.

        Returns:
            The message; None if it is not held. While `is_renewing`, its receipt is not final:
            wait until the renewal ends.
        """
        message = self.find(client, message_id, receipt)
        if message is not None:
            self._remove(message)
        return message

    def put_back(self, message: HeldMessage) -> None:
        """Let the client find a message again that was taken, because its request failed.

        It is not renewed: the broker may have acknowledged it all the same.
        """
        held = self._by_client.get(message.client, {})
        if message._key in held or self._count >= self._policy.handles_max:  # noqa: SLF001
            return
        message.is_taken, message.is_ending = False, True
        self._by_client.setdefault(message.client, held)[message._key] = message  # noqa: SLF001
        self._count += 1
        self._schedule(message, message.receipt.revive_at_ms + _BUCKET_MS)

    def find(
        self, client: ClientGroup, message_id: str, receipt: ReceiptHandle
    ) -> HeldMessage | None:
        """Return a message that is held; `receipt` is any of its receipts."""
        return self._by_client.get(client, {}).get(_key(message_id, receipt))

    def due(self, now_ms: int, limit: int) -> list[Renewal]:
        """Return at most `limit` renewals to request now.

        Each must be ended by `renewed` or `failed`. Messages that are visible already are dropped.
        """
        last = now_ms // _BUCKET_MS
        found: list[Renewal] = []
        for bucket in sorted(bucket for bucket in self._buckets if bucket <= last):
            messages = self._buckets[bucket]
            for message in list(islice(messages.values(), limit - len(found))):
                self._unschedule(message)
                renewal = self._next_renewal(message, now_ms)
                if renewal is None:
                    self._remove(message)
                else:
                    message.is_renewing = True
                    found.append(renewal)
            if len(found) >= limit:
                break
        return found

    def renewed(self, renewal: Renewal, receipt: ReceiptHandle) -> None:
        """Note the receipt of a successful renewal."""
        message = renewal.message
        message.is_renewing = False
        message.receipt = receipt
        message.renewals += 1
        message.failures = 0
        if renewal.is_last:
            self._remove(message)
        elif not message.is_taken:
            self._schedule(message, receipt.revive_at_ms - self._policy.ahead_ms)

    def failed(self, renewal: Renewal, now_ms: int, *, can_retry: bool) -> None:
        """Note a failed renewal.

        Args:
            renewal: the one that failed.
            now_ms: epoch milliseconds.
            can_retry: False if the broker or the receipt is invalid.
        """
        message = renewal.message
        message.is_renewing = False
        message.failures += 1
        if message.is_taken:
            return
        if renewal.is_last or not can_retry or message.failures >= self._policy.retries_max:
            self._remove(message)
        else:
            self._schedule(message, now_ms + self._policy.retry_ms)

    def release(self, client: ClientGroup) -> list[Renewal]:
        """Return the changes that make a departed client's messages visible soon.

        Messages whose renewal is in progress are among them, with receipts that are not final.
        """
        messages = list(self._by_client.get(client, {}).values())
        return list(self._released(messages))

    def release_all(self) -> list[Renewal]:
        """Return the changes that make all messages visible soon."""
        messages = [one for held in self._by_client.values() for one in held.values()]
        return list(self._released(messages))

    def clients(self) -> list[ClientGroup]:
        """Return the clients that hold messages."""
        return list(self._by_client)

    def _released(self, messages: list[HeldMessage]) -> Iterator[Renewal]:
        for message in messages:
            self._remove(message)
            if not message.is_ending:
                yield Renewal(message, self._policy.release_ms, is_last=True)

    def _next_renewal(self, message: HeldMessage, now_ms: int) -> Renewal | None:
        """Return the renewal of a message that is due; None to drop it."""
        if message.is_ending or message.receipt.revive_at_ms <= now_ms:
            return None
        if now_ms - message.first_pop_ms < self._policy.held_ms_max:
            steps = self._policy.steps_ms
            return Renewal(message, steps[min(message.renewals, len(steps) - 1)])
        delay_ms = self._retry_delay_ms(message.client.group, message.reconsume_times)
        return None if delay_ms is None else Renewal(message, delay_ms, is_last=True)

    def _schedule(self, message: HeldMessage, at_ms: int) -> None:
        bucket = at_ms // _BUCKET_MS
        message._bucket = bucket  # noqa: SLF001 - set here only
        self._buckets.setdefault(bucket, {})[id(message)] = message

    def _unschedule(self, message: HeldMessage) -> None:
        bucket, message._bucket = message._bucket, None  # noqa: SLF001
        if bucket is None:
            return
        messages = self._buckets[bucket]
        del messages[id(message)]
        if not messages:
            del self._buckets[bucket]

    def _remove(self, message: HeldMessage) -> None:
        """Stop to hold a message; nothing if it is not held."""
        if message.is_taken:
            return
        message.is_taken = True
        self._unschedule(message)
        held = self._by_client[message.client]
        del held[message._key]  # noqa: SLF001
        if not held:
            del self._by_client[message.client]
        self._count -= 1


def _key(message_id: str, receipt: ReceiptHandle) -> _Key:
    return _Key(message_id, receipt.broker_name, receipt.kind, receipt.queue_id, receipt.offset)

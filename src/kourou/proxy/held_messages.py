"""Messages that clients hold: their renewal, and their release when a client is gone.

Source: DefaultReceiptHandleManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError, RemoteError
from kourou.model.group import SubscriptionGroup
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.proxy.client_settings import retry_delay_ms
from kourou.proxy.clients import ProxyClient
from kourou.proxy.cluster import Cluster
from kourou.proxy.deliveries import Deliveries, receipt_of
from kourou.proxy.metadata import CallContext
from kourou.proxy.renewals import ClientGroup, HeldMessage, Renewal, RenewalPolicy, Renewals

log = logging.getLogger(__name__)

_RENEWED_AT_ONCE: Final = 256
"""Renewals in progress at a time."""
_RELEASED_MS: Final = 1_000
"""Invisible time of a message that could not be written to its client, or renewed."""


class HeldMessages:
    """Keeps messages invisible while clients hold them."""

    def __init__(self, cluster: Cluster, deliveries: Deliveries) -> None:
        self._cluster = cluster
        self._deliveries = deliveries
        self._groups: dict[str, SubscriptionGroup] = {}
        self._renewals = Renewals(RenewalPolicy(), self._retry_delay_ms)
        self._renewing: dict[HeldMessage, asyncio.Task[None]] = {}

    def hold(
        self, client: ProxyClient, group: SubscriptionGroup, messages: Iterable[PoppedMessage]
    ) -> None:
        """Renew messages that a client has received, until it ends their deliveries.

        They become visible soon if the client is gone by now: nothing would end their renewal.

        Args:
            client: of the receive.
            group: of the receive, which the client's settings need not name.
            messages: as popped.
        """
        name = group.group_name
        if client.is_gone:
            self.release_soon(name, messages)
            return
        self._groups[name] = group
        client.holding_groups.add(name)
        who = ClientGroup(client.id, name)
        for one in messages:
            receipt = receipt_of(one)
            self._renewals.add(who, one.topic, one.msg_id, receipt, one.reconsume_times)

    async def take(
        self, context: CallContext, group: str, message_id: str, receipt: ReceiptHandle
    ) -> HeldMessage | None:
        """Return a message with the receipt of its last renewal; it is renewed no more.

        Waits for a renewal in progress, because its receipt replaces the earlier one. None if the
        message is not held.
        """
        held = self._renewals.take(ClientGroup(context.client_id, group), message_id, receipt)
        if held is not None:
            await self._final_receipt(held)
        return held

    def put_back(self, held: HeldMessage | None) -> None:
        """Find the last receipt of a message again; the request for which it was taken failed."""
        if held is not None:
            self._renewals.put_back(held)

    @contextmanager
    def put_back_after_failure(self, held: HeldMessage | None) -> Iterator[None]:
        """Put a message back if the request for which it was taken raises an error of Kourou."""
        try:
            yield
        except KourouError:
            self.put_back(held)
            raise

    def holds_any(self, client_id: str, group: str) -> bool:
        """Return whether messages of the group are held for the client."""
        return self._renewals.count(ClientGroup(client_id, group)) > 0

    def take_unrenewed(
        self, client_id: str, group: str, message_id: str, receipt: ReceiptHandle
    ) -> bool:
        """Stop to renew a message; True also if it is not held.

        False, without an effect, if another receipt has replaced `receipt`, or is about to.
        """
        who = ClientGroup(client_id, group)
        held = self._renewals.find(who, message_id, receipt)
        if held is None:
            return True
        if held.is_renewing or held.receipt != receipt:
            return False
        self._renewals.take(who, message_id, receipt)
        return True

    async def _final_receipt(self, held: HeldMessage) -> ReceiptHandle:
        """Return the receipt of a message that is renewed no more."""
        renewing = self._renewing.get(held)
        if renewing is not None:
            await asyncio.wait((renewing,))
        return held.receipt

    async def renew(self) -> None:
        """Renew the messages that become visible soon; called every few seconds."""
        while due := self._renewals.due(self._cluster.now_ms(), _RENEWED_AT_ONCE):
            for renewal in due:
                task = asyncio.create_task(self._renew(renewal))
                self._renewing[renewal.message] = task
                task.add_done_callback(partial(self._renewal_ended, renewal.message))
            await asyncio.wait([self._renewing[renewal.message] for renewal in due])

    def _renewal_ended(self, held: HeldMessage, task: asyncio.Task[None]) -> None:
        del self._renewing[held]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("receipt.not_renewed group=%s", held.client.group, exc_info=error)

    async def _renew(self, renewal: Renewal) -> None:
        held = renewal.message
        if held.is_taken:  # since it was due
            self._renewals.failed(renewal, self._cluster.now_ms(), can_retry=False)
            return
        try:
            changed = await self._deliveries.change(
                self._cluster.pool,
                held.topic,
                held.client.group,
                held.receipt,
                renewal.invisible_ms,
            )
        except KourouError as error:
            # A slave, or a master that no controller confirms, refuses for a while.
            can_retry = error.retriable or not isinstance(error, RemoteError)
            log.info("receipt.not_renewed group=%s reason=%s", held.client.group, error)
            self._renewals.failed(renewal, self._cluster.now_ms(), can_retry=can_retry)
        else:
            self._renewals.renewed(renewal, changed)

    def release(self, client: ProxyClient) -> None:
        """Make the messages that a departed client holds visible soon."""
        for group in client.holding_groups:
            self._release(self._renewals.release(ClientGroup(client.id, group)))
        client.holding_groups.clear()

    def _release(self, renewals: Iterable[Renewal]) -> None:
        for renewal in renewals:
            self._deliveries.start(self._show_held(renewal))

    async def _show_held(self, renewal: Renewal) -> None:
        held = renewal.message
        receipt = await self._final_receipt(held)
        await self._show(held.topic, held.client.group, receipt, renewal.invisible_ms)

    def release_soon(self, group: str, messages: Iterable[PoppedMessage]) -> None:
        """Make messages visible soon that could not be written to their client, or renewed."""
        for one in messages:
            self._deliveries.start(self._show(one.topic, group, receipt_of(one), _RELEASED_MS))

    async def _show(
        self, topic: str, group: str, receipt: ReceiptHandle, invisible_ms: int
    ) -> None:
        """Make a message visible soon; its delivery does not count as an attempt."""
        pool = self._cluster.pool
        await self._deliveries.change(pool, topic, group, receipt, invisible_ms, suspend=True)

    def _retry_delay_ms(self, group: str, reconsume_times: int) -> int | None:
        found = self._groups.get(group)
        return None if found is None else retry_delay_ms(found, reconsume_times)

    async def close(self) -> None:
        """Release all messages that clients hold."""
        self._release(self._renewals.release_all())
        await self._deliveries.close()

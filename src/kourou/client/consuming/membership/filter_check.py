"""Asking brokers whether they can filter by properties, before a group joins with such a filter.

Brokers may have it switched off, and those before 4.1 take the expression for tags: a consumer that
joined nevertheless would wait for messages that never come.

Source: MQClientInstance.checkClientInBroker, apache/rocketmq 5.5.0, which asks one broker of each
topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kourou.client import calls_consume
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline
from kourou.errors import TransportError
from kourou.model.subscription import TAG_EXPRESSION, SubscriptionData

log = logging.getLogger(__name__)


def by_properties(subscriptions: Iterable[SubscriptionData]) -> list[SubscriptionData]:
    """Return those that brokers must be asked about."""
    return [one for one in subscriptions if one.expression_type != TAG_EXPRESSION]


async def find_and_check(
    instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData], timeout_ms: int
) -> None:
    """Find the brokers of each topic that is filtered by properties, and do `check_filters`.

    A topic without a route, or name servers that do not answer, are passed over.

    Raises:
        RemoteError: as `check_filters`.
    """
    asked, deadline = by_properties(subscriptions), Deadline(timeout_ms)
    for one in asked:
        try:
            await instance.routes.get(one.topic, deadline.remaining_s())
        except TransportError as error:
            log.warning("filter.not_checked topic=%s reason=%s", one.topic, error)
    await check_filters(instance, group, asked, deadline)


async def check_filters(
    instance: ClientInstance,
    group: str,
    subscriptions: Iterable[SubscriptionData],
    deadline: Deadline,
) -> None:
    """Ask all brokers that the client knows about each filter by properties.

    A broker that does not answer is passed over: its pulls will tell.

    Raises:
        SubscriptionParseError: a broker does not understand an expression.
        RequestNotSupportedError: a broker has filters by properties switched off, or is older than
            them.
    """
    asked = by_properties(subscriptions)
    if not asked:
        return
    addresses = instance.routes.broker_addresses(masters_only=True)

    async def ask(address: str, subscription: SubscriptionData) -> None:
        try:
            await calls_consume.check_client(
                instance.pool,
                address,
                instance.client_id,
                group,
                subscription,
                timeout_s=deadline.remaining_s(),
            )
        except TransportError as error:
            log.warning("filter.not_checked broker=%s reason=%s", address, error)

    await asyncio.gather(*(ask(address, one) for address in addresses for one in asked))

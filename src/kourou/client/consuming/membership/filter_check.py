"""Checks with brokers that they support filters by properties before a group joins with one.

Brokers may have such filters disabled, and brokers before 4.1 interpret the expression as tags. A
consumer that joined nevertheless would never receive messages.

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


def needing_check(subscriptions: Iterable[SubscriptionData]) -> list[SubscriptionData]:
    """Return the subscriptions that filter by properties, which brokers must check."""
    return [one for one in subscriptions if one.expression_type != TAG_EXPRESSION]


async def look_up_and_check(
    instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData], timeout_ms: int
) -> None:
    """Look up the brokers of each topic filtered by properties, then run `check_filters`.

    Topics without a route and unreachable name servers are skipped with a warning.

    Raises:
        RemoteError: as `check_filters`.
    """
    checked, deadline = needing_check(subscriptions), Deadline(timeout_ms)
    for one in checked:
        try:
            await instance.routes.get(one.topic, deadline.remaining_s())
        except TransportError as error:
            log.warning("filter.not_checked topic=%s reason=%s", one.topic, error)
    await check_filters(instance, group, checked, deadline)


async def check_filters(
    instance: ClientInstance,
    group: str,
    subscriptions: Iterable[SubscriptionData],
    deadline: Deadline,
) -> None:
    """Have all brokers in the client's routes check each filter by properties.

    A broker that does not answer is skipped with a warning: its pulls will fail instead.

    Raises:
        SubscriptionParseError: a broker cannot parse an expression.
        RequestNotSupportedError: a broker has filters by properties disabled, or is too old for
            them.
    """
    checked = needing_check(subscriptions)
    if not checked:
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

    await asyncio.gather(*(ask(address, one) for address in addresses for one in checked))

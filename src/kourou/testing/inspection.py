"""Access of tests to components inside clients.

The only module outside of `kourou.client` that names private attributes of clients.
"""

from __future__ import annotations

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.pulling.held_queues import HeldQueues
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.instance import ClientInstance
from kourou.client.sending.in_flight import InFlight
from kourou.client.sending.producer import Producer
from kourou.client.sending.sender import Sender


def instance_of(client: Producer | PushConsumer | PullConsumer) -> ClientInstance:
    """Return the connections, routes and heartbeats of a client."""
    return client._instance


def sender_of(producer: Producer) -> Sender:
    """Return the part of a producer that sends and retries."""
    return producer._sender


def in_flight_of(producer: Producer) -> InFlight:
    """Return the messages in flight of a producer."""
    return producer._in_flight


def config_of(consumer: PushConsumer) -> PushConsumerConfig:
    """Return the effective configuration of a consumer."""
    return consumer._config


def held_queues_of(consumer: PushConsumer) -> HeldQueues:
    """Return the queues assigned to a consumer."""
    return consumer._held


def rebalance_of(consumer: PushConsumer) -> RebalanceLoop:
    """Return the rebalance loop of a consumer."""
    return consumer._rebalance

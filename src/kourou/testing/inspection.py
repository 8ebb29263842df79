"""Access of tests to components inside clients and brokers.

The only module outside of theirs that names private attributes of clients and brokers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kourou.broker.registration import Registration
from kourou.broker.server import Broker
from kourou.broker.transactions.op_writer import OpWriter
from kourou.broker.transactions.transactions import Transactions
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_calls import Server
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.pulling.held_queues import HeldQueues
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.instance import ClientInstance
from kourou.client.sending.in_flight import InFlight, OperationCounter
from kourou.client.sending.latency_fault import BrokerLatencies
from kourou.client.sending.producer import Producer
from kourou.client.sending.sender import Sender
from kourou.client.user_functions import UserThreads

AnyClient = Producer | PushConsumer | PullConsumer | AdminClient


def instance_of(client: AnyClient) -> ClientInstance:
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


def stats_of(consumer: PushConsumer) -> ConsumerStats:
    """Return the counters of a consumer."""
    return consumer._stats


def operations_of(producer: Producer) -> OperationCounter:
    """Return the counter of a producer's operations in flight."""
    return producer._operations


def latencies_of(producer: Producer) -> BrokerLatencies | None:
    """Return the latencies of brokers that a producer has measured; None if it measures none."""
    return producer._sender._latencies


def server_of(admin: AdminClient, address: str) -> Server:
    """Return the server at `host:port`, for requests with headers that the test makes."""
    return admin._server(address)


def disable_fast_path(client: AnyClient) -> None:
    """Send all requests of a client through the general path from now on."""
    client._instance.pool._connections.disable_fast_path()


async def end_threads(threads: UserThreads) -> None:
    """Refuse new work, and wait until all threads have ended."""
    await asyncio.to_thread(threads._executor.shutdown)


def unwrapped(client: Any) -> Any:  # noqa: ANN401 - clients of both kinds
    """Return the asyncio client that a client of `kourou.blocking` wraps, or the client itself."""
    return getattr(client, "_client", client)


def registration_of(broker: Broker) -> Registration:
    """Return the registration of a running broker with its name servers."""
    assert broker._running is not None, "the broker is not running"
    assert broker._running._registration is not None, "the broker is not started"
    return broker._running._registration


def op_writer_of(transactions: Transactions) -> OpWriter:
    """Return the writer of op messages."""
    return transactions._op_writer

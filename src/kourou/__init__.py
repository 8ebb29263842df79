"""Kourou: a message system that speaks Apache RocketMQ's protocols and keeps its files.

    from kourou import Message, Producer

The names in `__all__` are the public API. Each is loaded on first use, so that `import kourou`
stays cheap: the command line and the servers need few of them.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kourou import errors

if TYPE_CHECKING:
    from kourou.auth.credentials import Credentials
    from kourou.client.administration.admin import (
        AdminClient,
        GroupDescription,
        OffsetReset,
        TopicRates,
        TraceStep,
    )
    from kourou.client.config import AdminConfig, ProducerConfig
    from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
    from kourou.client.consuming.consumer_config import (
        PullConsumerConfig,
        PushConsumerConfig,
        SimpleConsumerConfig,
    )
    from kourou.client.consuming.listening.idempotent import Idempotent, by_key, by_unique_id
    from kourou.client.consuming.listening.ordered_calls import OrderlyContext
    from kourou.client.consuming.listening.seen_store import SeenInMemory, SeenInSqlite
    from kourou.client.consuming.pull_consumer import PullConsumer
    from kourou.client.consuming.push_consumer import PushConsumer
    from kourou.client.consuming.simple_consumer import SimpleConsumer
    from kourou.client.consuming.watching.consume_hooks import (
        ConsumeContext,
        ConsumeHook,
        ConsumeOutcome,
    )
    from kourou.client.consuming.watching.consume_stats import TopicStats
    from kourou.client.health import ConsumerHealth, ProducerHealth, SimpleConsumerHealth
    from kourou.client.pop_result import PoppedMessage
    from kourou.client.pull_result import PullResult, PullStatus
    from kourou.client.running import run
    from kourou.client.send_receipt import Durability, SendReceipt, SendStatus
    from kourou.client.sending.batching import split_batch
    from kourou.client.sending.ledger_destinations import LedgerFiles
    from kourou.client.sending.producer import Producer
    from kourou.client.sending.send_hooks import SendAttempt, SendCheck, SendHook, SendOutcome
    from kourou.client.sending.send_ledger import SendLedger
    from kourou.client.sending.send_stats import ProducerStats
    from kourou.client.sending.transaction import (
        EndTransactionHook,
        Transaction,
        TransactionEnd,
        TransactionReceipt,
        TransactionState,
    )
    from kourou.client.sending.transaction_producer import TransactionProducer
    from kourou.model.allocation import ConfiguredQueues, MachineRooms, NearbyMachineRooms
    from kourou.model.consistent_hash import ConsistentHash
    from kourou.model.group import ConsumeFromWhere, MessageModel, SubscriptionGroup
    from kourou.model.message import Message, MessageExt
    from kourou.model.queue import MessageQueue
    from kourou.protocol.command import SerializeType
    from kourou.protocol.compression import CompressionType
    from kourou.protocol.popping.receipt_handles import ReceiptHandle
    from kourou.remoting.request_hooks import RequestHook
    from kourou.remoting.tls import TlsClientConfig

__version__ = "0.1.0"

__all__ = [
    "AdminClient",
    "AdminConfig",
    "CompressionType",
    "ConfiguredQueues",
    "ConsistentHash",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeOutcome",
    "ConsumerHealth",
    "Credentials",
    "DeadLetter",
    "Durability",
    "EndTransactionHook",
    "GroupDescription",
    "Idempotent",
    "LedgerFiles",
    "MachineRooms",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NearbyMachineRooms",
    "OffsetReset",
    "OrderlyContext",
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "ProducerHealth",
    "ProducerStats",
    "PullConsumer",
    "PullConsumerConfig",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerConfig",
    "ReceiptHandle",
    "RequestHook",
    "RetryLater",
    "SeenInMemory",
    "SeenInSqlite",
    "SendAttempt",
    "SendCheck",
    "SendHook",
    "SendLedger",
    "SendOutcome",
    "SendReceipt",
    "SendStatus",
    "SerializeType",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "SimpleConsumerHealth",
    "SubscriptionGroup",
    "TlsClientConfig",
    "TopicRates",
    "TopicStats",
    "TraceStep",
    "Transaction",
    "TransactionEnd",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "__version__",
    "by_key",
    "by_unique_id",
    "errors",
    "run",
    "split_batch",
]

_HOMES: Final = MappingProxyType(
    {
        "AdminClient": "kourou.client.administration.admin",
        "AdminConfig": "kourou.client.config",
        "CompressionType": "kourou.protocol.compression",
        "ConfiguredQueues": "kourou.model.allocation",
        "ConsistentHash": "kourou.model.consistent_hash",
        "ConsumeContext": "kourou.client.consuming.watching.consume_hooks",
        "ConsumeFromWhere": "kourou.model.group",
        "ConsumeHook": "kourou.client.consuming.watching.consume_hooks",
        "ConsumeOutcome": "kourou.client.consuming.watching.consume_hooks",
        "ConsumerHealth": "kourou.client.health",
        "Credentials": "kourou.auth.credentials",
        "DeadLetter": "kourou.client.consuming.acknowledging.redelivery",
        "Durability": "kourou.client.send_receipt",
        "EndTransactionHook": "kourou.client.sending.transaction",
        "GroupDescription": "kourou.client.administration.admin",
        "Idempotent": "kourou.client.consuming.listening.idempotent",
        "LedgerFiles": "kourou.client.sending.ledger_destinations",
        "MachineRooms": "kourou.model.allocation",
        "Message": "kourou.model.message",
        "MessageExt": "kourou.model.message",
        "MessageModel": "kourou.model.group",
        "MessageQueue": "kourou.model.queue",
        "NearbyMachineRooms": "kourou.model.allocation",
        "OffsetReset": "kourou.client.administration.admin",
        "OrderlyContext": "kourou.client.consuming.listening.ordered_calls",
        "PoppedMessage": "kourou.client.pop_result",
        "Producer": "kourou.client.sending.producer",
        "ProducerConfig": "kourou.client.config",
        "ProducerHealth": "kourou.client.health",
        "ProducerStats": "kourou.client.sending.send_stats",
        "PullConsumer": "kourou.client.consuming.pull_consumer",
        "PullConsumerConfig": "kourou.client.consuming.consumer_config",
        "PullResult": "kourou.client.pull_result",
        "PullStatus": "kourou.client.pull_result",
        "PushConsumer": "kourou.client.consuming.push_consumer",
        "PushConsumerConfig": "kourou.client.consuming.consumer_config",
        "ReceiptHandle": "kourou.protocol.popping.receipt_handles",
        "RequestHook": "kourou.remoting.request_hooks",
        "RetryLater": "kourou.client.consuming.acknowledging.redelivery",
        "SeenInMemory": "kourou.client.consuming.listening.seen_store",
        "SeenInSqlite": "kourou.client.consuming.listening.seen_store",
        "SendAttempt": "kourou.client.sending.send_hooks",
        "SendCheck": "kourou.client.sending.send_hooks",
        "SendHook": "kourou.client.sending.send_hooks",
        "SendLedger": "kourou.client.sending.send_ledger",
        "SendOutcome": "kourou.client.sending.send_hooks",
        "SendReceipt": "kourou.client.send_receipt",
        "SendStatus": "kourou.client.send_receipt",
        "SerializeType": "kourou.protocol.command",
        "SimpleConsumer": "kourou.client.consuming.simple_consumer",
        "SimpleConsumerConfig": "kourou.client.consuming.consumer_config",
        "SimpleConsumerHealth": "kourou.client.health",
        "SubscriptionGroup": "kourou.model.group",
        "TlsClientConfig": "kourou.remoting.tls",
        "TopicRates": "kourou.client.administration.admin",
        "TopicStats": "kourou.client.consuming.watching.consume_stats",
        "TraceStep": "kourou.client.administration.admin",
        "Transaction": "kourou.client.sending.transaction",
        "TransactionEnd": "kourou.client.sending.transaction",
        "TransactionProducer": "kourou.client.sending.transaction_producer",
        "TransactionReceipt": "kourou.client.sending.transaction",
        "TransactionState": "kourou.client.sending.transaction",
        "by_key": "kourou.client.consuming.listening.idempotent",
        "by_unique_id": "kourou.client.consuming.listening.idempotent",
        "run": "kourou.client.running",
        "split_batch": "kourou.client.sending.batching",
    }
)


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kourou' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

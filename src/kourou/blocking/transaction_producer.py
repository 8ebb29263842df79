"""The blocking transaction producer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import Blocking, blocking_method
from kourou.blocking.producer import Producer
from kourou.client.config import ProducerConfig
from kourou.client.sending.queue_choice import QueueSelector
from kourou.client.sending.transaction import Transaction, TransactionCheck, TransactionState
from kourou.client.sending.transaction_producer import (
    TransactionProducer as AsyncTransactionProducer,
)
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Runtime


class TransactionProducer(Producer):
    """Sends messages in transactions: the blocking form of `kourou.TransactionProducer`.

    Local transactions and checks that are plain functions run on the producer's own threads.
    """

    _client: AsyncTransactionProducer

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None = None,
        *,
        check: TransactionCheck,
        topics: Sequence[str] = (),
        credentials: AnyCredentials | None = None,
        config: ProducerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        Blocking.__init__(
            self,
            lambda: AsyncTransactionProducer(
                group,
                namesrv_addr,
                check=check,
                topics=topics,
                credentials=credentials,
                config=config,
                runtime=runtime,
            ),
        )

    send_in_transaction = blocking_method(AsyncTransactionProducer.send_in_transaction)
    begin_transaction = blocking_method(AsyncTransactionProducer.begin_transaction)
    end_transaction = blocking_method(AsyncTransactionProducer.end_transaction)

    @contextmanager
    def transaction(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> Iterator[Transaction]:
        """Send a half message; commit it when the block ends, roll it back if the block raises.

        See `kourou.TransactionProducer.transaction`.
        """
        transaction = self.begin_transaction(
            message, timeout_ms=timeout_ms, queue=queue, sharding_key=sharding_key
        )
        try:
            yield transaction
        except Exception:
            self.end_transaction(transaction, TransactionState.ROLLBACK, timeout_ms=timeout_ms)
            raise
        except BaseException:
            self.end_transaction(transaction, TransactionState.UNKNOWN, timeout_ms=timeout_ms)
            raise
        self.end_transaction(transaction, transaction.state, timeout_ms=timeout_ms)

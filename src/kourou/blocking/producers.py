"""The blocking producers, for plain messages and for transactions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import Blocking, background, blocking_method, loop_method
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.producer import Producer as AsyncProducer
from kourou.client.sending.queue_choice import QueueSelector
from kourou.client.sending.send_hooks import SendCheck, SendHook
from kourou.client.sending.transaction import (
    EndTransactionHook,
    Transaction,
    TransactionCheck,
    TransactionState,
)
from kourou.client.sending.transaction_producer import (
    TransactionProducer as AsyncTransactionProducer,
)
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import DEFAULT_PRODUCER_GROUP
from kourou.remoting.runtime import Runtime

P = ParamSpec("P")


def _submit_method(
    submit: Callable[
        Concatenate[AsyncProducer, P], Coroutine[Any, Any, asyncio.Future[SendReceipt]]
    ],
) -> Callable[Concatenate[Blocking[AsyncProducer], P], concurrent.futures.Future[SendReceipt]]:
    """Return `submit` as a blocking method that returns a thread-safe future."""

    @functools.wraps(submit)
    def submit_blocking(
        self: Blocking[AsyncProducer], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[SendReceipt]:
        async def submitted() -> concurrent.futures.Future[SendReceipt]:
            return _thread_safe_future(await submit(self._client, *args, **kwargs))

        return background.run(submitted)

    return submit_blocking


def _thread_safe_future(
    receipt: asyncio.Future[SendReceipt],
) -> concurrent.futures.Future[SendReceipt]:
    """Return a thread-safe future with the outcome of `receipt`; cancelling it cancels `receipt`.

    Like `asyncio.run_coroutine_threadsafe`, but without a coroutine and a task.
    """
    loop = receipt.get_loop()
    outcome: concurrent.futures.Future[SendReceipt] = concurrent.futures.Future()

    def settle(ended: asyncio.Future[SendReceipt]) -> None:
        error = None
        if ended.cancelled():
            outcome.cancel()
        else:
            error = ended.exception()
        if not outcome.set_running_or_notify_cancel():
            return  # cancelled
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(ended.result())

    def cancel_receipt(future: concurrent.futures.Future[SendReceipt]) -> None:
        if future.cancelled():
            loop.call_soon_threadsafe(receipt.cancel)

    receipt.add_done_callback(settle)
    outcome.add_done_callback(cancel_receipt)
    return outcome


class Producer(Blocking[AsyncProducer]):
    """Sends messages: the blocking form of `kourou.Producer`.

    `submit` returns a `concurrent.futures.Future`. Hooks run on the thread of the event loop.
    """

    def __init__(
        self,
        group: str = DEFAULT_PRODUCER_GROUP,
        namesrv_addr: str | None = None,
        *,
        credentials: AnyCredentials | None = None,
        config: ProducerConfig | None = None,
        hooks: Sequence[SendHook | SendCheck] = (),
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncProducer(
                group,
                namesrv_addr,
                credentials=credentials,
                config=config,
                hooks=hooks,
                runtime=runtime,
            )
        )

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this producer."""
        return self._client.client_id

    send = blocking_method(AsyncProducer.send)
    send_batch = blocking_method(AsyncProducer.send_batch)
    send_oneway = blocking_method(AsyncProducer.send_oneway)
    submit = _submit_method(AsyncProducer.submit)
    request = blocking_method(AsyncProducer.request)
    reply = blocking_method(AsyncProducer.reply)
    recall = blocking_method(AsyncProducer.recall)
    flush = blocking_method(AsyncProducer.flush)
    fetch_publish_message_queues = blocking_method(AsyncProducer.fetch_publish_message_queues)
    stats = loop_method(AsyncProducer.stats)
    health = loop_method(AsyncProducer.health)


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
        hooks: Sequence[SendHook | SendCheck] = (),
        end_hooks: Sequence[EndTransactionHook] = (),
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
                hooks=hooks,
                end_hooks=end_hooks,
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

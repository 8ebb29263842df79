"""TransactionProducer: messages that consumers get only if a local transaction has succeeded.

Source: TransactionMQProducer.java, DefaultMQProducerImpl.sendMessageInTransaction.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from kourou.auth.credentials import AnyCredentials
from kourou.client.calls_send import check_message, encode_message
from kourou.client.config import ProducerConfig, resolve_config
from kourou.client.retrying import check_timeout
from kourou.client.send_receipt import SendReceipt, SendStatus
from kourou.client.sending.producer import Producer
from kourou.client.sending.queue_choice import QueueSelector, resolve_queue_choice
from kourou.client.sending.send_hooks import SendCheck, SendHook
from kourou.client.sending.transaction import (
    EndTransactionHook,
    EndTransactionHooks,
    LocalTransaction,
    Transaction,
    TransactionCheck,
    TransactionEnd,
    TransactionReceipt,
    TransactionState,
    as_half,
    as_state,
    check_half,
    end_command,
)
from kourou.client.sending.transaction_checks import TransactionChecks
from kourou.client.user_functions import UserCalls, check_function
from kourou.errors import KourouError, RemoteError, UsageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import AUTO_CREATE_TOPIC
from kourou.protocol.codes import RequestCode
from kourou.remoting.dispatch import Handler
from kourou.remoting.runtime import Offload, Runtime

log = logging.getLogger(__name__)

REGISTER_INTERVAL_MS: Final = 30_000
"""Interval in ms of look-ups of the given topics that have no route yet."""


class TransactionProducer(Producer):
    """A producer that can send messages in transactions.

    The broker first stores a half message, which is invisible to consumers. Then the local
    transaction runs, and the message is committed or rolled back. If the broker gets neither,
    because this process died or lost the network, it sends a check to a producer of the same group
    after some time, and repeats it as configured (15 times, each 30 s). `check` must then determine
    the outcome. So store the id of the transaction together with the results of the local
    transaction.

    If the answer to a half message is lost, it is sent again like other messages. If both copies
    are stored, the broker checks the first one, with the same id, and consumers may get the message
    twice.

        def charged(message: MessageExt) -> TransactionState:
            known = database.has_payment(message.msg_id)
            return TransactionState.COMMIT if known else TransactionState.ROLLBACK

        async with TransactionProducer("payments", "localhost:9876", check=charged) as producer:
            async with producer.transaction(Message("Paid", b"...")) as transaction:
                await charge(card, payment_id=transaction.id)

    It also has all methods of `Producer`.

    Args:
        group: the producer group; its members must be able to check each other's transactions.
        namesrv_addr: as in `Producer`.
        check: returns the outcome of a transaction; its argument is the message, whose `msg_id` is
            the id of the transaction. A plain function runs on one of `transaction_threads`, a
            coroutine function on the event loop. An exception counts as UNKNOWN. The first commit
            or rollback of a transaction is final; later ones have no effect.
        topics: topics whose brokers may send checks from the start. Brokers of topics to which a
            message was sent, and of the topic TBW102, may send checks in any case.
        credentials: sign each request, for clusters that require it: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        hooks: as in `Producer`; those that have `end_transaction` are also `end_hooks`.
        end_hooks: called before each end of a transaction is sent.
        runtime: network, clock and randomness, for tests; None: those of the system.
        run_blocking: runs plain functions, for tests; None: they run on threads.

    Raises:
        InvalidGroupError, ConfigError, CodecMissingError: as `Producer`.
        UsageError: `check` is not a function of one message.
    """

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
        run_blocking: Offload | None = None,
    ) -> None:
        check_function(check, "check", "a message")
        config = resolve_config(config, ProducerConfig, credentials)
        both = [cast(EndTransactionHook, one) for one in hooks if hasattr(one, "end_transaction")]
        self._end_hooks = EndTransactionHooks(
            [*end_hooks, *(one for one in both if one not in end_hooks)]
        )
        self._checks = TransactionChecks(
            group, check, self._end_hooks, config.transaction_checks_max
        )
        self._topics = (*topics, AUTO_CREATE_TOPIC)
        super().__init__(group, namesrv_addr, config=config, hooks=hooks, runtime=runtime)
        self._end_hooks.add(self._traces)
        self._calls = UserCalls(
            config.transaction_threads, f"kourou-transaction-{group}", run_blocking
        )

    async def start(self) -> None:
        """Start the producer, and begin to register at brokers that may send checks.

        Raises:
            ClosedError, ForkedError, ConfigError: as `Producer.start`.
        """
        self._checks.calls = self._calls
        await super().start()
        self._checks.tasks = self._instance.tasks
        self._checks.pool = self._instance.pool
        self._instance.tasks.start_periodic(
            self._find_brokers, REGISTER_INTERVAL_MS, "look-up of brokers that may ask", first_ms=0
        )

    async def close(self) -> None:
        """Close as `Producer.close`; it also waits for transactions in progress."""
        try:
            await super().close()
        finally:
            self._calls.close()

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> TransactionReceipt:
        """Send a half message, call `local`, and end the transaction with its result.

        Args:
            message: the message that consumers get after a commit; it must not be delayed.
            local: does the work of the transaction and returns the outcome; a plain function runs
                on one of `transaction_threads`. UNKNOWN leaves the outcome to `check`.
            timeout_ms: for the half message, and again for the end; None: `send_timeout_ms`.
            queue: as in `Producer.send`.
            sharding_key: as in `Producer.send`.

        Returns:
            The outcome, and whether the broker has confirmed it.

        Raises:
            UsageError, TransportError, RemoteError: the half message failed, as `Producer.send`:
                `local` was not called, and the message will not be delivered. RemoteError also if
                the half message was stored, but not as durably as the broker requires; it was
                rolled back.
            UsageError: `local` did not return a TransactionState; the broker will call `check`.
            Exception: the exception of `local`; the broker will call `check`, since the outcome is
                unknown.
        """
        check_function(local, "local", "a transaction")
        transaction = await self.begin_transaction(
            message, timeout_ms=timeout_ms, queue=queue, sharding_key=sharding_key
        )
        with self._operations:
            try:
                state = await self._run(local, transaction)
            except BaseException as error:
                await self._send_unknown(transaction, repr(error), timeout_ms)
                raise
            return await self.end_transaction(transaction, state, timeout_ms=timeout_ms)

    @asynccontextmanager
    async def transaction(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> AsyncIterator[Transaction]:
        """Send a half message; commit it when the block ends, roll it back if the block raises.

            async with producer.transaction(Message("Paid", b"...")) as transaction:
                await charge(card, payment_id=transaction.id)

        Set `transaction.state` for another outcome. After a cancellation, or any other exception
        that is not an `Exception`, the outcome is unknown and left to `check`.

        Args:
            message: as in `send_in_transaction`.
            timeout_ms: as in `send_in_transaction`.
            queue: as in `Producer.send`.
            sharding_key: as in `Producer.send`.

        Raises:
            UsageError, TransportError, RemoteError: as `send_in_transaction`; the block does not
                run.
        """
        transaction = await self.begin_transaction(
            message, timeout_ms=timeout_ms, queue=queue, sharding_key=sharding_key
        )
        with self._operations:
            try:
                yield transaction
            except Exception:
                rolled_back = TransactionState.ROLLBACK
                await self.end_transaction(transaction, rolled_back, timeout_ms=timeout_ms)
                raise
            except BaseException as error:
                await self._send_unknown(transaction, repr(error), timeout_ms)
                raise
            await self.end_transaction(transaction, transaction.state, timeout_ms=timeout_ms)

    async def begin_transaction(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> Transaction:
        """Send a half message; it is invisible to consumers until `end_transaction` commits it.

        Args:
            message: as in `send_in_transaction`.
            timeout_ms: None: `send_timeout_ms`.
            queue: as in `Producer.send`.
            sharding_key: as in `Producer.send`.

        Raises:
            UsageError, TransportError, RemoteError: as `send_in_transaction`.
        """
        self._instance.check_open()
        choice, message = resolve_queue_choice(message, queue, sharding_key)
        check_message(message, self._config)
        check_half(message)
        check_timeout(timeout_ms)
        outgoing = as_half(encode_message(message, self._next_id()), self.group)
        with self._operations:
            [half] = await self._sender.send(outgoing, timeout_ms, choice)
            transaction = Transaction(message, half)
            if half.status is not SendStatus.SEND_OK:
                await self._roll_back(transaction, timeout_ms)
        return transaction

    async def end_transaction(
        self,
        transaction: Transaction,
        state: TransactionState,
        *,
        timeout_ms: int | None = None,
    ) -> TransactionReceipt:
        """Commit or roll back a half message.

        Does not raise if the broker is not reached or refuses, because the local transaction cannot
        be undone: the receipt is then not confirmed, and the broker will call `check`. After a late
        sync (FLUSH_DISK_TIMEOUT) it calls `check` only if a power failure has lost the end. A
        second call has no effect.

        Args:
            transaction: the result of `begin_transaction`.
            state: UNKNOWN leaves the outcome to `check`.
            timeout_ms: for the broker's answer; None: `send_timeout_ms`.

        Raises:
            UsageError: `state` is not a TransactionState.
        """
        if as_state(state) is None:
            raise UsageError(f"state is {state!r:.100}: pass a TransactionState")
        is_confirmed = False
        try:
            is_confirmed = await self._send_end(transaction, state, "", timeout_ms)
        except KourouError as error:
            log.warning(
                "transaction.not_ended group=%s id=%s state=%s reason=%s",
                self.group, transaction.id, state.name, error,
            )  # fmt: skip
        return TransactionReceipt(transaction.id, transaction.half, state, is_confirmed)

    def _handlers(self) -> dict[int, Handler]:
        check = {RequestCode.CHECK_TRANSACTION_STATE: self._checks.on_check_transaction_state}
        return super()._handlers() | check

    async def _run(self, local: LocalTransaction, transaction: Transaction) -> TransactionState:
        value = await self._calls.call(local, transaction)
        state = as_state(value)
        if state is None:
            raise UsageError(
                f"the local transaction returned {value!r:.100}, no TransactionState: the broker "
                "will call the check"
            )
        return state

    async def _send_end(
        self, transaction: Transaction, state: TransactionState, remark: str, timeout_ms: int | None
    ) -> bool:
        """Send the end, and return whether the broker has confirmed it.

        Raises:
            TransportError, RemoteError: the broker was not reached, or has refused.
        """
        timeout_s = (self._config.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        half = transaction.half
        address = await self._instance.routes.address(
            half.queue.topic, half.queue.broker_name, timeout_s
        )
        end = TransactionEnd(
            self.group,
            transaction.message.topic,
            transaction.id,
            address,
            state,
            is_checked=False,
            message=transaction.message,
        )
        self._end_hooks.call(end)
        is_oneway = state is TransactionState.UNKNOWN  # Java's brokers do not answer UNKNOWN
        command = end_command(transaction, self.group, state, oneway=is_oneway, remark=remark)
        if is_oneway:
            await self._instance.pool.oneway(address, command, timeout_s)
            return False
        answer = await self._instance.pool.request(address, command, timeout_s)
        if answer.code != 0:
            raise RemoteError.from_response(answer.code, answer.remark)
        self._end_hooks.confirm(end)
        return True

    async def _send_unknown(
        self, transaction: Transaction, reason: str, timeout_ms: int | None
    ) -> None:
        try:
            await self._send_end(transaction, TransactionState.UNKNOWN, reason[:1000], timeout_ms)
        except KourouError as error:  # the broker calls the check in any case
            log.info("transaction.not_told id=%s reason=%s", transaction.id, error)

    async def _roll_back(self, transaction: Transaction, timeout_ms: int | None) -> None:
        """Roll back a half message that is stored, but not as durably as the broker requires.

        Raises:
            RemoteError: always; it names the status of the half message.
        """
        half: SendReceipt = transaction.half
        await self.end_transaction(transaction, TransactionState.ROLLBACK, timeout_ms=timeout_ms)
        raise RemoteError.from_response(
            half.status.value,
            f"the half message {half.msg_id} was rolled back: {half.status.name}",
        )

    async def _find_brokers(self) -> None:
        """Look up topics without a cached route, and send heartbeats if new routes were found."""
        routes = self._instance.routes
        is_new = False
        for topic in self._topics:
            if routes.cached(topic) is None:
                try:
                    await routes.get(topic, self._instance.request_timeout_s)
                    is_new = True
                except KourouError as error:
                    log.debug("transaction_producer.no_route topic=%s reason=%s", topic, error)
        if is_new:
            await self._instance.heartbeat_all()

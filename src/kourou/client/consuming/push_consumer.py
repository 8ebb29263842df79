"""PushConsumer: consumes topics as a member of a group."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Final, TypeVar, Unpack

from kourou.auth.credentials import AnyCredentials
from kourou.client.background import watch_loop
from kourou.client.config import resolve_config
from kourou.client.consuming.acknowledging.acknowledgements import (
    Acknowledgements,
    BroadcastAcknowledgements,
    Redeliverer,
    redeliver_overdue,
)
from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.client.consuming.client_requests import ClientRequests
from kourou.client.consuming.consumer import Consumer
from kourou.client.consuming.consumer_answers import ConsumerAnswers
from kourou.client.consuming.consumer_config import (
    ConsumeMode,
    LiveOptions,
    PushConsumerConfig,
    Start,
    with_live_options,
    with_mode,
    with_start,
)
from kourou.client.consuming.listening.consume_concurrently import ConcurrentConsumption
from kourou.client.consuming.listening.consume_orderly import NoLocks, OrderlyConsumption
from kourou.client.consuming.listening.iteration import Iteration, MessageLoop
from kourou.client.consuming.listening.listener_calls import BatchListener, Listener
from kourou.client.consuming.listening.ordered_calls import ContextListener, OrderedCall
from kourou.client.consuming.listening.registered_listener import RegisteredListener
from kourou.client.consuming.membership.queue_locks import QueueLocks
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.membership.server_assignment import ServerAssignment
from kourou.client.consuming.membership.subscriptions import Subscriptions
from kourou.client.consuming.offsets.local_offsets import create_offsets
from kourou.client.consuming.popping.popped_queues import PoppedQueues
from kourou.client.consuming.popping.settling import PushAcknowledgements
from kourou.client.consuming.pulling.delivery import DeliverySource, ReadyMessages
from kourou.client.consuming.pulling.held_queues import HeldQueues, push_terms
from kourou.client.consuming.pulling.queue_fetcher import FetchContext
from kourou.client.consuming.watching.consume_hooks import ConsumeWatch
from kourou.client.health import QueueState
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.running import end_signals
from kourou.disk import Disk
from kourou.errors import UsageError
from kourou.model.group import MessageModel
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL
from kourou.model.topic import check_client_group
from kourou.protocol.clients import ConsumerData
from kourou.remoting.runtime import Offload, Runtime

__all__ = ["Listener", "PushConsumer"]

log = logging.getLogger(__name__)

ListenerT = TypeVar("ListenerT", bound=Listener)
BatchListenerT = TypeVar("BatchListenerT", bound=BatchListener)
ContextListenerT = TypeVar("ContextListenerT", bound=ContextListener)

BROADCAST_INSTANCE_NAME: Final = "DEFAULT"
"""Java's default instance name of a broadcasting consumer."""

UNUSED_WARN_S: Final = 10.0
"""Seconds after the start at which a consumer without a listener or a loop logs a warning."""

UNUSED_PROBLEM: Final = (
    "no listener, and no loop over the consumer: the messages of its queues are not consumed, "
    "neither by it nor by another member of the group"
)


class PushConsumer(Lifetime, Consumer):
    """Consumes topics as a member of a group: each message is delivered to one member.

    Queues are assigned among the members, again whenever one joins or leaves. Delivery is at least
    once and in any order: a message is redelivered if its listener raises, if its consumer ends
    before the offset is committed, or when its queue moves to another member. A listener should be
    idempotent; `message.msg_id` and the keys identify redeliveries.

    With a listener: a plain function, called on one of `consume_threads` threads that belong to the
    consumer, or a coroutine function, called on the event loop. Returning acknowledges the message;
    raising has it redelivered after 10 s, 30 s, 1 min ..., and after `max_reconsume_times` it is
    stored in the dead-letter topic `%DLQ%group`:

        consumer = PushConsumer("billing", "localhost:9876")
        consumer.subscribe("OrderPlaced", tags="eu || us")
        consumer.listen(charge)
        kourou.run(consumer)  # within a coroutine: async with consumer: await run_forever()

    Each `listen` method returns the listener, so that it can be used as a decorator. It raises
    UsageError if the consumer was started, has a listener already, or if the listener does not take
    the arguments. A listener that calls `sys.exit` ends the program; its messages are redelivered.

    By iteration: start the consumer just before the loop. Queues are assigned to it at the start,
    and their messages wait for the loop; after 10 s without a loop, the log and `health` report it.
    Requesting the next message acknowledges the one before. Leaving the loop, by break or
    exception, leaves its message unacknowledged: it is delivered again to the next loop over this
    consumer, or else to another member. Several tasks may iterate concurrently:

        async with consumer:
            async for message in consumer:
                try:
                    await charge(message)
                except PaymentsDownError:
                    await consumer.give_back(message, RetryLater(delay_ms=60_000))

    A listener or loop body that never ends blocks the commits of its queue, which then is pulled no
    further than `consume_max_span`; after `consume_timeout_ms` the message is sent back.

    Args:
        group: the name of the group; also part of the names of its retry and dead-letter topics.
        namesrv_addr: `host:port`, or several joined by `;`. None: from the environment variable
            KOUROU_NAMESRV or NAMESRV_ADDR, else 127.0.0.1:9876.
        start: start position of a new group in a queue: "earliest", "latest" or a datetime, in
            local time if it has no time zone. None: as in `config`, by default the latest.
        mode: "pull" or "pop"; see `PushConsumerConfig.mode`. None: as in `config`, by default pull.
        credentials: sign each request, for clusters that require it: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        runtime: the environment, for tests; None: the real one.
        run_blocking: runs listeners that are plain functions; None: threads.
        disk: directory of the offsets of BROADCASTING, for tests; None: as in the config.

    Raises:
        InvalidGroupError, ConfigError: an argument is not a valid name or address.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None = None,
        *,
        start: Start | None = None,
        mode: ConsumeMode | None = None,
        credentials: AnyCredentials | None = None,
        config: PushConsumerConfig | None = None,
        runtime: Runtime | None = None,
        run_blocking: Offload | None = None,
        disk: Disk | None = None,
    ) -> None:
        check_client_group(group)
        config = with_start(resolve_config(config, PushConsumerConfig, credentials), start)
        config = with_mode(config, mode)
        self._is_broadcasting = config.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and config.instance_name is None:
            # Its offsets are stored under the client id, which must be the same after a restart.
            config = dataclasses.replace(config, instance_name=BROADCAST_INSTANCE_NAME)
        self._config = config
        self._disk = disk
        self._consumption: ConcurrentConsumption | OrderlyConsumption | None = None
        self._ended = asyncio.Event()  # closed, or a signal arrived
        self._requests = ClientRequests(group, config.namespace)
        instance = ClientInstance(
            namesrv_addr,
            self._config,
            runtime,
            kind="push consumer",
            consumer=self._consumer_data,
            handlers=self._requests.handlers(),
            on_route_changed=self._on_change,
            on_registered=self._on_change,
        )
        Consumer.__init__(self, instance, group)
        self._compose(run_blocking)

    def _compose(self, run_blocking: Offload | None) -> None:
        """Construct the collaborators; starts nothing."""
        config, instance = self._config, self._instance
        self._subscriptions = Subscriptions(instance, self.group)
        self._ready = ReadyMessages()
        self._offsets = create_offsets(instance, self.group, config, self._disk)
        settling = PushAcknowledgements(instance, self.group, config, self._offsets)
        self._acknowledgements: Acknowledgements = settling
        if self._is_broadcasting:
            self._acknowledgements = BroadcastAcknowledgements(
                instance, self.group, config, self._offsets
            )
        self._watch = ConsumeWatch(self.group, config.consume_timeout_ms, self._hooks, self._stats)
        self._listener = RegisteredListener(
            self.group, config.consume_threads, self._watch, run_blocking
        )
        self._redeliverer = Redeliverer(
            instance, self._acknowledgements, self._ready, config.local_retry_delay_ms
        )
        self._iteration = Iteration(
            self._ready,
            self._acknowledgements,
            self._redeliverer,
            instance.runtime.clock,
            self._watch,
        )
        self._held = HeldQueues(self._fetch_context(), config, self._subscriptions, self._ready)
        self._popped = PoppedQueues(
            instance, config, self._subscriptions, settling=settling, held=self._held
        )
        self._rebalance = RebalanceLoop(
            instance,
            self.group,
            config,
            subscriptions=self._subscriptions,
            held=self._held,
            is_broadcasting=self._is_broadcasting,
            assignment=ServerAssignment.create(instance, self.group, config),
        )
        self._rebalance.on_queues_changed = self._on_queues_changed
        self._answers = self._requests.target = ConsumerAnswers(
            instance,
            self.group,
            config,
            subscriptions=self._subscriptions,
            held=self._held,
            rebalance=self._rebalance,
            stats=self._stats,
        )

    def _fetch_context(self) -> FetchContext:
        """Return the objects and settings that the pulls of all queues share."""
        return FetchContext(
            instance=self._instance,
            group=self.group,
            config=self._config,
            terms=push_terms(self._config),
            offsets=self._offsets,
            on_pulled=self._stats.count_pulled,
            store_dead_letter=self._acknowledgements.store_dead_letter,
        )

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member holds, sorted, including those of the retry topic.

        Queue id -1 stands for all queues of a broker, which are popped.

        Raises:
            ClosedError: the consumer is closed, or was never started.
        """
        self._instance.check_open()
        return sorted([*self._held.queues, *self._popped.queues])

    def subscribe(self, topic: str, tags: str | None = SUB_ALL, *, sql: str | None = None) -> None:
        """Subscribe to a topic, before or after the start. A second call replaces the first.

        All members of a group must have the same subscriptions; otherwise members miss messages.

        After the start, the subscription takes effect with a delay: brokers first check that they
        can filter by `sql`. If one cannot, that is logged, and the previous subscription stays.
        Messages already pulled are still consumed.

        Args:
            topic: need not exist yet.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, an SQL92 expression over properties, all of which are texts:
                `amount > 5 AND region IN ('eu', 'us')`. Brokers need enablePropertyFilter.

        Raises:
            InvalidTopicError: the topic is not a valid name.
            FilterSyntaxError: the expression does not parse; the text has the position.
            UsageError: both expressions are given.
            ClosedError: the consumer is closed.
        """
        if not self._instance.is_new:
            self._instance.check_open()
        self._subscriptions.request(topic, tags, sql)
        if not self._instance.is_new:
            self._instance.tasks.start(lambda: self._resubscribe(topic), f"subscription of {topic}")

    async def _resubscribe(self, topic: str) -> None:
        if await self._subscriptions.activate(topic, self._config.request_timeout_ms):
            await self._instance.heartbeat_all()
            self._rebalance.wake()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, before or after the start.

        Its queues are released soon: done messages are committed; a message that a listener is
        processing may be redelivered to another member.
        """
        if self._subscriptions.remove(topic) and self._instance.is_open:
            self._instance.tasks.start(self._instance.heartbeat_all, "heartbeat to all brokers")
            self._rebalance.wake()

    def listen(self, listener: ListenerT) -> ListenerT:
        """Call `listener` with each message, concurrently and in any order.

        Returning acknowledges the message; raising has it redelivered later.
        """
        self._check_new("listen")
        self._listener.register(listener)
        return listener

    def listen_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Call `listener` with up to `consume_batch_size` messages of one queue.

        A batch has the messages that are ready; it does not wait for more. Raising has all of them
        redelivered.
        """
        self._check_new("listen_in_batches")
        self._listener.register_batch(listener)
        return listener

    def listen_orderly(self, listener: ListenerT) -> ListenerT:
        """Call `listener` with the messages of each queue in order, one at a time.

        The queue is locked at its broker, so that no other member consumes it, except in a
        broadcasting group. Producers send related messages to one queue by `sharding_key`.

        Returning acknowledges the message. Raising suspends the queue for `suspend_queue_ms`, or
        for the delay of a `RetryLater`; then the same message is delivered again, without limit by
        default. After `max_reconsume_times`, or for a `DeadLetter`, it is stored in `%DLQ%group`,
        and the queue continues. A listener call that never ends blocks its queue. If the queue is
        assigned to another member, that member gets it only `consume_timeout_ms` later.
        """
        self._check_new("listen_orderly")
        self._listener.register_ordered(listener)
        return listener

    def listen_orderly_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Call `listener` as `listen_orderly` does, with up to `consume_batch_size` messages.

        Raising has all of them delivered again. A `RetryLater` or `DeadLetter` that names messages
        affects the first of those and all after it.
        """
        self._check_new("listen_orderly_in_batches")
        self._listener.register_ordered_batch(listener)
        return listener

    def listen_orderly_and_commit(self, listener: ContextListenerT) -> ContextListenerT:
        """Call `listener` as `listen_orderly_in_batches` does; the listener decides when to commit.

        It is called with messages and an `OrderlyContext`. After `context.commit()` all messages of
        the queue delivered so far are done. After `context.rollback()` all messages since the last
        commit are delivered again; so are they if the queue moves to another member. If it returns
        without either, the next messages are delivered. Not with mode="pop".
        """
        self._check_new("listen_orderly_and_commit")
        if self._config.mode == "pop":
            raise UsageError(
                "listen_orderly_and_commit does not work with mode='pop': a broker delivers the "
                "next messages of a queue only when the earlier ones are acknowledged; use "
                "listen_orderly_in_batches or mode='pull'"
            )
        self._listener.register_committing(listener)
        return listener

    def __aiter__(self) -> MessageLoop:
        """Return a loop over the messages, which ends when the consumer closes.

        Raises:
            ClosedError: the consumer is closed, or was never started.
            UsageError: it has a listener.
        """
        self._instance.check_open()
        if self._listener.call is not None:
            raise UsageError("the consumer has a listener, which receives all messages")
        return self._iteration.messages()

    async def give_back(self, message: MessageExt, error: Exception | None = None) -> None:
        """Give back the current message of a loop, as if a listener had raised `error`.

        Requesting the next message then does not acknowledge this one. If no broker accepts it,
        this consumer redelivers it after a few seconds; if this call is cancelled, immediately. A
        broadcasting group drops it.

        Args:
            message: the message object that the loop returned.
            error: `RetryLater` or `DeadLetter` as instruction. After any other error the message is
                redelivered after 10 s, 30 s, 1 min ..., and a dead letter stores the error. None:
                as `RetryLater()`.

        Raises:
            ClosedError: the consumer is closed, or was never started.
            UsageError: no loop over this consumer has the message, it was given back before, or
                `error` names other messages.
        """
        self._instance.check_open()
        await self._iteration.give_back(message, RetryLater() if error is None else error)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues; without arguments, all queues.

        The consumer stays a member and keeps its queues: no other member consumes them meanwhile.
        Messages already pulled, or being pulled, are still consumed.

        Args:
            queues: queues held now, or that may be assigned later.
        """
        self._held.flow.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Resume pulling these queues; without arguments, all, individually paused ones too."""
        self._held.flow.resume(queues)

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is paused, individually or with all queues."""
        return self._held.flow.is_paused(queue)

    @property
    def consume_threads(self) -> int:
        """Number of listener calls that may run at a time."""
        return self._config.consume_threads

    @consume_threads.setter
    def consume_threads(self, count: int) -> None:
        self.reconfigure(consume_threads=count)

    def reconfigure(self, **options: Unpack[LiveOptions]) -> None:
        """Change options, with effect from the next pull or listener call on.

        Lowering `consume_threads` cuts no call short: the number falls as running calls end.

        Raises:
            ConfigError: a value is out of its range; nothing is changed.
            UsageError: an option does not exist or cannot be changed after construction.
            ClosedError: the consumer is closed.
        """
        if not self._instance.is_new:
            self._instance.check_open()
        config = with_live_options(self._config, options)
        self._popped.reconfigure(config)
        if config.consume_threads != self._config.consume_threads:
            self._listener.resize(config.consume_threads)
            if self._consumption is not None:
                self._consumption.resize(config.consume_threads)
        self._config = config
        self._held.reconfigure(config)

    async def start(self) -> None:
        """Join the group; return when this member holds its queues, or after a few seconds.

        A topic that does not exist yet is consumed soon after it is created. Cancelling leaves the
        consumer closed.

        Raises:
            UsageError: no topic is subscribed.
            InvalidGroupError: this process already has a consumer of the group with the same
                `instance_name`.
            ConnectFailedError: no name server answered within `request_timeout_ms`.
            RemoteError: a broker cannot filter by a subscription's `sql`.
            ClosedError: the consumer was started before, or closed meanwhile.
        """
        if not self._subscriptions.requested:
            raise UsageError("subscribe to a topic before the start")
        self._instance.start()
        try:
            self._acquire_group(self._config.instance_name)
            await self._offsets.open()
            self._subscriptions.activate_all(is_retrying=not self._is_broadcasting)
            await self._subscriptions.look_up_routes(self._config.request_timeout_ms)
            await self._instance.heartbeat_all()
            self._instance.check_open()  # another task may have closed it meanwhile
            self._begin()
        except BaseException:
            await self._shut_down()
            raise
        try:
            await self._rebalance.wait_first_pass(self._instance.request_timeout_s)
        except BaseException:
            await self.close()  # listeners may already have handled messages
            raise

    async def close(self) -> None:
        """Leave the group: stop deliveries, wait for running listeners, commit, disconnect.

        Waits at most `shutdown_timeout_ms` for listeners and for loops in other tasks, and some
        seconds for brokers. Messages that are not acknowledged by then are redelivered to other
        members. Loops over the consumer end. Cancelling skips the remaining steps. May be called
        twice.
        """
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        try:
            self._ready.close()
            await self._rebalance.stop()
            self._popped.stop()
            await self._held.stop_pulling()
            if self._consumption is not None:
                await self._consumption.close()
            await self._iteration.wait_for_others(self._config.shutdown_timeout_ms)
            await self._popped.close(self._instance.request_timeout_s)
            await self._held.release_all()
        finally:
            await self._shut_down()

    def abort(self) -> None:
        """End immediately without any request, as a killed process would; nothing is committed."""
        self._instance.abort()
        self._end()

    async def run_forever(self) -> None:
        """Wait until SIGINT (Ctrl-C) or SIGTERM, then `close`; or until the consumer is closed.

        A signal closes every consumer that waits here: running listeners end, done messages are
        committed, and this method returns. A second signal ends the process immediately. Signals
        are handled only on the main thread, and only if the program has not set its own handlers
        for them; earlier handlers are restored. Cancelling ends the wait without closing.

        Raises:
            ClosedError: the consumer is closed, or was never started.
            UsageError: it has no listener, so that nothing would be consumed.
        """
        self._instance.check_open()
        if self._listener.call is None:
            raise UsageError(
                f"the consumer of group {self.group} has no listener: add one before the start, "
                "for example by `consumer.listen(function)`, or use `async for` instead"
            )
        loop, ended = asyncio.get_running_loop(), self._ended
        with end_signals.registered(lambda: loop.call_soon_threadsafe(ended.set)):
            await ended.wait()
            await self.close()

    # Joining and leaving

    def _begin(self) -> None:
        """Start the loops and the listener's workers."""
        config, tasks = self._config, self._instance.tasks
        call = self._listener.call
        if isinstance(call, OrderedCall):
            self._begin_in_order(call)
        if not self._is_broadcasting:
            is_ordered = isinstance(call, OrderedCall)
            self._popped.begin(self._rebalance, self._stats, is_ordered=is_ordered)
        self._rebalance.start()
        tasks.start_periodic(
            self._held.persist, config.persist_offset_interval_ms, "persist offsets"
        )
        self._start_sampling()
        tasks.start(watch_loop, "event loop watch")
        self._answers.begin(call, self._popped)
        if isinstance(call, OrderedCall):
            return
        tasks.start_periodic(self._redeliver_overdue, config.consume_timeout_ms, "overdue messages")
        if call is None:
            tasks.start(self._warn_unless_used, "look for a loop over the consumer")
            return
        self._consumption = ConcurrentConsumption(
            call,
            config,
            clock=self._instance.runtime.clock,
            ready=self._ready,
            acknowledgements=self._acknowledgements,
            redeliverer=self._redeliverer,
        )
        self._consumption.start()

    def _begin_in_order(self, call: OrderedCall) -> None:
        config, tasks = self._config, self._instance.tasks
        locks = None
        if not self._is_broadcasting:
            locks = self._held.locks = QueueLocks(self._instance, self.group, config)
            locks.on_lost = self._held.drop_lost
            tasks.start_periodic(locks.renew, config.lock_interval_ms, "renewal of locks")
        self._consumption = self._held.consumption = OrderlyConsumption(
            call,
            config,
            clock=self._instance.runtime.clock,
            locks=NoLocks() if locks is None else locks,
            acknowledgements=self._acknowledgements,
            offsets=self._offsets,
        )

    async def _shut_down(self) -> None:
        """Disconnect. Unfinished messages and uncommitted offsets are left."""
        try:
            await self._instance.close()
        finally:
            self._end()

    def _end(self) -> None:
        self._ready.close()
        if self._consumption is not None:
            self._consumption.cancel()
        self._held.drop_all()
        self._popped.drop_all()
        self._listener.close()
        self._offsets.close()
        self._release_group(self._config.instance_name)
        self._ended.set()

    def _check_new(self, action: str) -> None:
        if not self._instance.is_new:
            raise UsageError(f"{action} must be called before the start")

    async def _warn_unless_used(self) -> None:
        await asyncio.sleep(UNUSED_WARN_S)
        if not self._iteration.is_used:
            log.warning("consumer.unused group=%s problem=%s", self.group, UNUSED_PROBLEM)

    def _usage_problems(self) -> list[str]:
        is_used = self._listener.call is not None or self._iteration.is_used
        return [] if is_used or not self._instance.is_open else [UNUSED_PROBLEM]

    # Callbacks of the client instance

    def _consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            message_model=self._config.message_model,
            consume_from_where=self._config.consume_from_where,
            subscriptions=tuple(self._subscriptions.values()),
        )

    def _on_change(self, _: str) -> None:
        self._rebalance.wake()

    async def _redeliver_overdue(self) -> None:
        self._popped.give_back_overdue()
        sources: list[DeliverySource] = [*self._held.process_queues, *self._popped.held]
        await redeliver_overdue(sources, self._acknowledgements)

    def _listener_problems(self) -> list[str]:
        problems = [] if self._consumption is None else self._consumption.problems()
        return problems + self._popped.problems()

    def _lost_acks(self) -> int:
        return self._popped.lost_acks

    def _queue_states(self) -> Mapping[MessageQueue, QueueState]:
        return {**self._held.states(), **self._popped.states()}

"""PullConsumer: polls assigned or subscribed queues, or reads any queue at any offset."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import Enum, auto

from kourou.auth.credentials import AnyCredentials
from kourou.client.config import resolve_config
from kourou.client.consuming.acknowledging.acknowledgements import store_dead_letter
from kourou.client.consuming.client_requests import ClientRequests
from kourou.client.consuming.consumer import Consumer
from kourou.client.consuming.consumer_answers import ConsumerAnswers
from kourou.client.consuming.consumer_config import PullConsumerConfig, Start, with_start
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.membership.subscriptions import (
    look_up_and_check,
    needing_check,
    subscription_of,
)
from kourou.client.consuming.offsets.offset_store import RemoteOffsets
from kourou.client.consuming.polling.polled_queues import PolledQueues, Poller, poll_terms
from kourou.client.consuming.polling.queue_access import QueueAccess
from kourou.client.consuming.polling.queue_turns import QueueCallback, QueueCallbacks
from kourou.client.consuming.pulling.queue_fetcher import FetchContext
from kourou.client.consuming.watching.topic_watch import TopicQueuesChanged, TopicWatch
from kourou.client.health import QueueState
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.user_functions import check_function
from kourou.errors import ClosedError, KourouError, RemoteError, UsageError
from kourou.model.group import ConsumeType
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import check_client_group, check_topic
from kourou.protocol.clients import ConsumerData
from kourou.protocol.record.decode import UndecodableMessage
from kourou.remoting.runtime import Runtime

__all__ = ["PullConsumer", "PullResult", "PullStatus"]


class Mode(Enum):
    """The way in which a consumer's queues are chosen."""

    NONE = auto()
    ASSIGNED = auto()
    SUBSCRIBED = auto()


class PullConsumer(Lifetime, Consumer):
    """Receives messages on request, in one of four ways.

    By polling queues that the program assigns. The consumer then is not a member of its group:
    brokers do not list it, and it does not affect the members' assignment. It shares only the
    group's committed offsets with them:

        async with PullConsumer("audit", "localhost:9876") as consumer:
            await consumer.assign(await consumer.fetch_subscribe_message_queues("OrderPlaced"))
            while True:
                for message in await consumer.poll():
                    check(message)

    By polling topics, whose queues are assigned among the members of the group, pull and push
    consumers alike:

            consumer.subscribe("OrderPlaced", tags="eu || us")
            async for message in consumer:
                await check(message)

    By reading single queues at offsets that the program stores:

            result = await consumer.pull(queue, await consumer.min_offset(queue))

    By a callback that is called repeatedly for each assigned queue: `call_for_queues`.

    A poll acknowledges the messages of the poll before it, and `commit` all messages returned.
    Acknowledged offsets are committed every `auto_commit_interval_ms` and at the end, unless
    `auto_commit` is False. Messages of the last poll are not acknowledged: if the consumer ends
    without another poll or `commit`, they are delivered again, so that unfinished work is not lost.
    SIGTERM skips the commit at the end, unless the program is run by `kourou.run(main())`.

    Only one task may poll, iterate and commit; all other methods may be called from any task.

    Args:
        group: the group whose offsets are used, and for which brokers count reads.
        namesrv_addr: `host:port`, or several joined by `;`. None: from the environment variable
            KOUROU_NAMESRV or NAMESRV_ADDR, else 127.0.0.1:9876.
        start: start position of a new group in a queue: "earliest", "latest" or a datetime, in
            local time if it has no time zone. None: as in `config`, by default the latest.
        credentials: sign each request, for clusters that require it: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        runtime: the environment, for tests; None: the real one.

    Raises:
        InvalidGroupError, ConfigError: an argument is not a valid name or address.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None = None,
        *,
        start: Start | None = None,
        credentials: AnyCredentials | None = None,
        config: PullConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        config = with_start(resolve_config(config, PullConsumerConfig, credentials), start)
        self._config = config
        self._requests = ClientRequests(group, config.namespace)
        instance = ClientInstance(
            namesrv_addr,
            config,
            runtime,
            kind="pull consumer",
            consumer=self._consumer_data,
            handlers=self._requests.handlers(),
            on_route_changed=self._on_route_changed,
            on_registered=self._on_registered,
        )
        Consumer.__init__(self, instance, group)
        self._compose()

    def _compose(self) -> None:
        """Construct the collaborators; starts nothing."""
        config, instance, group = self._config, self._instance, self.group
        self._mode = Mode.NONE
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._callbacks = QueueCallbacks(group, config)
        context = FetchContext(
            instance=instance,
            group=group,
            config=config,
            terms=poll_terms(config),
            offsets=RemoteOffsets(instance, group, config.request_timeout_ms),
            on_pulled=self._stats.count_pulled,
            store_dead_letter=self._store_dead_letter,
        )
        self._polled = PolledQueues(context, config, self._subscriptions, self._callbacks.turns_of)
        self._access = QueueAccess(instance, group, config)
        self._poller = Poller(self._polled, self._access)
        self._rebalance = RebalanceLoop(
            instance, group, config, subscriptions=self._subscriptions, held=self._polled
        )
        self._rebalance.on_queues_changed = self._on_queues_changed
        self._is_rebalancing = False
        self._unchecked: dict[str, SubscriptionData] = {}  # brokers are checking their filters
        self._watch = TopicWatch(instance)
        self._answers = self._requests.target = ConsumerAnswers(
            instance,
            self.group,
            config,
            subscriptions=self._subscriptions,
            held=self._polled,
            rebalance=self._rebalance,
            stats=self._stats,
        )

    async def start(self) -> None:
        """Start the consumer. Without subscriptions it sends no request before the first call.

        Raises:
            ClosedError: it was started before.
            RemoteError: a broker cannot filter by the `sql` of a subscription.
            InvalidGroupError: topics are subscribed, and this process already has a consumer of the
                group with the same `instance_name`.
        """
        if self._mode is Mode.SUBSCRIBED:
            self._acquire_group(self._config.instance_name)
        try:
            self._instance.start()
        except BaseException:
            self._release_group(self._config.instance_name)
            raise
        try:
            await self._check_filters(self._subscriptions.values())
        except BaseException:
            self.abort()
            raise
        tasks, config = self._instance.tasks, self._config
        if config.auto_commit:
            tasks.start_periodic(
                self._polled.persist, config.auto_commit_interval_ms, "auto commit"
            )
        self._start_sampling()
        self._answers.begin(None)
        tasks.start(self._watch.look_up, "queues of watched topics")
        if self._mode is Mode.SUBSCRIBED:
            self._join()

    async def close(self) -> None:
        """Commit acknowledged messages if `auto_commit`, leave the group and disconnect.

        Pending calls fail; a pending `poll` returns no messages. May be called twice.
        """
        if self._instance.is_open:
            await self._polled.end_turns()
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        try:
            self._polled.stop_polls()
            if self._is_rebalancing:
                await self._rebalance.stop()
            await self._polled.close()
            if self._config.auto_commit:
                await self._polled.persist()
        finally:
            self._end()
            await self._instance.close()

    def abort(self) -> None:
        """End immediately without any request, as a killed process would; nothing is committed."""
        self._instance.abort()
        self._end()

    # Assignments and subscriptions

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        tags: str | None = SUB_ALL,
        *,
        sql: str | None = None,
    ) -> None:
        """Poll these queues from now on, and no others.

        Queues that were polled already continue at their position. Others start at the group's
        committed offset or, if it has none, as `consume_from_where` says.

        Args:
            queues: if empty, polling ends.
            tags: `*`, or tags joined by `||`; for the new queues.
            sql: instead of tags, an SQL92 expression over properties; see `PushConsumer.subscribe`.

        Raises:
            UsageError: topics are subscribed (a consumer either assigns or subscribes), or both
                expressions are given.
            FilterSyntaxError: the expression does not parse.
            RemoteError: a broker cannot filter by `sql`.
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        wanted = set(queues)
        topics = sorted({queue.topic for queue in wanted})
        subscriptions = {topic: subscription_of(topic, tags, sql) for topic in topics}
        await self._check_filters(subscriptions.values())
        self._enter(Mode.ASSIGNED)
        self._subscriptions.update(subscriptions)
        await self._polled.replace(wanted)

    def subscribe(self, topic: str, tags: str | None = SUB_ALL, *, sql: str | None = None) -> None:
        """Poll the queues of a topic that are assigned to this member; before or after the start.

        A second call replaces the expression; messages already pulled are still returned. All
        members of a group must have the same subscriptions; otherwise members miss messages.

        After the start, brokers first check that they can filter by `sql`; then the topic is
        polled. If one cannot, the next poll raises RemoteError, and the previous subscription
        stays.

        Args:
            topic: need not exist yet.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, an SQL92 expression over properties; see `PushConsumer.subscribe`.

        Raises:
            UsageError: queues are assigned (a consumer either assigns or subscribes), or both
                expressions are given.
            InvalidTopicError: the topic is not a valid name.
            FilterSyntaxError: the expression does not parse.
            InvalidGroupError: as `start`.
            ClosedError: the consumer is closed.
        """
        check_topic(topic)
        now_ms = self._instance.runtime.clock.now_ms()
        self._subscribe(subscription_of(topic, tags, sql, now_ms), None)

    def call_for_queues(self, topic: str, callback: QueueCallback) -> QueueCallback:
        """Call `callback` repeatedly with each queue of a topic assigned to this member.

        Replaces polling, before or after the start, like Java's MQPullConsumerScheduleService. The
        callback may use the queue in any way, and returns the delay before its next turn in ms, or
        None for `schedule_delay_ms`. Exceptions that it raises are logged, and the next turn
        follows after `schedule_delay_ms`. Only the callback itself commits:

            async def take(queue: MessageQueue) -> int | None:
                offset = await consumer.committed(queue) or 0
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    await check(message)
                await consumer.commit_offset(queue, result.next_offset)
                return 0 if result.messages else 1_000

            consumer.call_for_queues("OrderPlaced", take)

        A queue has one turn at a time, and none while it is paused. When it moves to another
        member, the running turn has half a second to end; the other member starts after two
        seconds.

        Args:
            topic: need not exist yet.
            callback: a coroutine function, called on the event loop, or a plain function, called on
                one of `schedule_threads` threads.

        Returns:
            `callback`.

        Raises:
            UsageError: queues are assigned (a consumer either assigns or subscribes), or the
                callback does not take one queue.
            InvalidTopicError, InvalidGroupError, ClosedError: as `subscribe`.
        """
        check_topic(topic)
        check_function(callback, "the callback", "a queue")
        now_ms = self._instance.runtime.clock.now_ms()
        self._subscribe(subscription_of(topic, SUB_ALL, None, now_ms), callback)
        return callback

    def _subscribe(self, subscription: SubscriptionData, callback: QueueCallback | None) -> None:
        topic = subscription.topic
        if not self._instance.is_new:
            self._instance.check_open()
            if self._mode is Mode.NONE:
                self._acquire_group(self._config.instance_name)
        self._enter(Mode.SUBSCRIBED)
        self._unchecked.pop(topic, None)
        self._callbacks.replace(topic, callback)
        if self._instance.is_new:
            self._subscriptions[topic] = subscription
        elif needing_check((subscription,)):
            self._unchecked[topic] = subscription
            tasks = self._instance.tasks
            tasks.start(lambda: self._join_if_served(subscription), f"check of {topic}'s filter")
        else:
            self._join_by(subscription)

    def unsubscribe(self, topic: str) -> None:
        """Stop polling the topic: its queues are committed and released soon."""
        self._unchecked.pop(topic, None)
        if self._mode is Mode.SUBSCRIBED and self._subscriptions.pop(topic, None) is not None:
            self._rebalance.wake()
            if self._instance.is_open:
                self._instance.tasks.start(self._instance.heartbeat_all, "heartbeat to all brokers")

    def on_topic_queues_changed(
        self, topic: str, listener: TopicQueuesChanged
    ) -> TopicQueuesChanged:
        """Call `listener` when the topic's readable queues change, regardless of their consumers.

        Routes are refreshed every `route_refresh_interval_ms`. It is called on the event loop with
        the topic and all its readable queues, sorted. Exceptions that it raises are logged.

        Raises:
            InvalidTopicError: the topic is not a valid name.
        """
        check_topic(topic)
        self._watch.add(topic, listener)
        if self._instance.is_open:
            self._instance.tasks.start(self._watch.look_up, "queues of watched topics")
        return listener

    # Polling and positions

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are currently polled, sorted.

        Raises:
            ClosedError: the consumer is closed, or was never started.
        """
        self._instance.check_open()
        return self._polled.queues

    async def poll(
        self, timeout_ms: int | None = None, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Return the next messages; acknowledge those of the previous poll.

        Cancelling removes no messages, but the previous poll's stay acknowledged.

        Args:
            timeout_ms: time to wait for the first message; None: `poll_timeout_ms`.
            max_messages: None: `poll_batch_size`.

        Returns:
            Messages of each queue in offset order; none if none arrived within the timeout.

        Raises:
            UsageError: no queue is assigned and no topic subscribed; another task polls; or an
                argument is out of its range.
            ClosedError: the consumer is not open.
            RemoteError: a broker cannot filter by a subscription made since the last poll.
        """
        self._instance.check_open()
        if self._mode is Mode.NONE:
            raise UsageError("nothing to poll: assign queues, or subscribe topics")
        limit = self._config.poll_batch_size if max_messages is None else max_messages
        timeout_ms = self._config.poll_timeout_ms if timeout_ms is None else timeout_ms
        messages = await self._poller.poll(limit, timeout_ms)
        if messages:
            self._report(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Iterate over the messages; requesting the next one acknowledges the one before.

        Ends when the consumer closes.

        Raises:
            UsageError, ClosedError: as `poll`.
        """
        self._instance.check_open()
        while True:
            try:
                messages = await self.poll(max_messages=1)
            except ClosedError:
                return
            for message in messages:
                yield message

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Acknowledge and commit all returned messages, or commit an offset of one queue.

        Returns when the broker has the offset in memory. It writes offsets to disk every 5 seconds,
        so a crash of the broker may lose the last ones. An offset may also be lower than before.

        Args:
            queue: None: all queues that are polled.
            offset: the group has consumed all messages below it; requires a queue. None: the offset
                behind the returned messages of the queue.

        Raises:
            UsageError: the offset is negative or without a queue, or the queue is not polled.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TopicNotFoundError: a topic was deleted, or deleted and created again: the messages
                belonged to the old topic. The next poll continues in the new one.
            TransportError, RemoteError: as `pull`. Some of several queues may be committed.
        """
        self._instance.check_open()
        if offset is None:
            await self._poller.commit(queue)
        elif queue is None:
            raise UsageError(f"commit offset {offset} without a queue: pass the queue")
        else:
            await self._access.commit_offset(queue, offset)

    def commit_soon(self) -> None:
        """Acknowledge and commit all returned messages without waiting for the brokers.

        A failure is logged; the next commit includes the offsets. Does once what `auto_commit` does
        periodically.

        Raises:
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        self._polled.acknowledge()
        self._instance.tasks.start(self._polled.persist, "commit soon")

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another queue offset: the next poll returns messages from there on.

        Messages of the queue from the last poll no longer affect the committed offset: the new
        offset is committed next.

        Raises:
            UsageError: the queue is not polled by this consumer, or the offset is outside its
                bounds.
            TransportError, RemoteError: as `pull`; the position is unchanged.
        """
        await self._poller.seek(queue, offset)

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue at the oldest stored message.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self._access.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the newest message.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self._access.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at a time or later, or behind the newest message.

        Args:
            queue: a polled queue.
            timestamp_ms: epoch milliseconds, by the broker's clock.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        offset = await self._access.offset_for_time(queue, timestamp_ms)
        self._polled.move(queue, offset)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the queue offset of the next message to poll; None until it is known.

        Raises:
            UsageError: the queue is not polled by this consumer.
        """
        return self._polled.get(queue).position

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling and polling these queues until `resume`; they stay assigned.

        Raises:
            UsageError: one is not polled by this consumer; nothing is changed.
        """
        self._polled.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume paused queues.

        Raises:
            UsageError: one is not polled by this consumer; nothing is changed.
        """
        self._polled.resume(queues)

    # Single queues

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Look up and return the readable queues of the topic, sorted.

        Raises:
            InvalidTopicError: the topic is not a valid name.
            NoRouteError: no name server knows the topic.
            ConnectFailedError: no name server answered; the text names them.
        """
        return await self._access.queues_of(topic)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from the queue offset `offset` on, without waiting.

        Args:
            queue: the queue.
            offset: the queue offset to start at.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, an SQL92 expression over properties; see `PushConsumer.subscribe`.
            max_messages: 1 to 1,024; the broker may return fewer.
            timeout_ms: None: `pull_timeout_ms`.

        Returns:
            The messages, or the reason why there are none; continue at its `next_offset` in any
            case.

        Raises:
            UsageError: an argument is out of its range, or the consumer is closed.
            FilterSyntaxError: the expression does not parse.
            TransportError: no response within the timeout.
            RemoteError: the broker refused: no such topic, no permission.
        """
        timeout_ms = self._config.pull_timeout_ms if timeout_ms is None else timeout_ms
        subscription = subscription_of(queue.topic, tags, sql)
        return await self._access.pull(queue, offset, subscription, max_messages, (0, timeout_ms))

    async def pull_or_wait(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
        wait_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from `offset` on; wait for one if there is none.

        Args:
            queue: as in `pull`.
            offset: as in `pull`.
            tags: as in `pull`.
            sql: as in `pull`.
            max_messages: as in `pull`.
            wait_ms: time to wait for a message, then the status is NO_NEW_MSG. None: the config's.
            timeout_ms: for the whole call; None: `wait_ms` plus `pull_timeout_ms`.

        Raises:
            UsageError, TransportError, RemoteError: as `pull`.
        """
        wait_ms = self._config.wait_ms if wait_ms is None else wait_ms
        if timeout_ms is None:
            timeout_ms = wait_ms + self._config.pull_timeout_ms
        times_ms, subscription = (wait_ms, timeout_ms), subscription_of(queue.topic, tags, sql)
        return await self._access.pull(queue, offset, subscription, max_messages, times_ms)

    def pull_with_callback(
        self,
        queue: MessageQueue,
        offset: int,
        on_result: Callable[[PullResult], object],
        on_error: Callable[[KourouError], object] | None = None,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
    ) -> None:
        """Start a pull like `pull_or_wait`, and return immediately.

        One of the callbacks is called once, on the event loop; exceptions that it raises are
        logged. Neither is called if the consumer closes first.

        Args:
            queue: as in `pull`.
            offset: as in `pull`.
            on_result: called with the result, which may have no message.
            on_error: called with the error of `pull_or_wait`; None: the error is logged.
            tags: as in `pull`.
            sql: as in `pull`.
            max_messages: as in `pull`.

        Raises:
            UsageError: `CALLBACKS_MAX` such pulls are pending.
            ClosedError: the consumer is not open.
        """
        self._access.start_pull(
            lambda: self.pull_or_wait(queue, offset, tags=tags, sql=sql, max_messages=max_messages),
            on_result,
            on_error,
            f"pull {queue}",
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed queue offset, that of its next message; None if none.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._access.committed(queue)

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit that the group has consumed all messages below the queue offset `offset`.

        Returns when the broker has the offset in memory. It writes offsets to disk every 5 seconds,
        so a crash of the broker may lose the last ones. An offset may also be lower than before.

        Raises:
            UsageError: the offset is negative, or the consumer is closed.
            InvalidParameterError: the offset is beyond the end of the queue.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TransportError, RemoteError: as `pull`.
        """
        await self._access.commit_offset(queue, offset)

    async def give_back(self, message: MessageExt, error: Exception | None = None) -> None:
        """Have a message redelivered to the group, as if a listener had raised `error`.

        It is redelivered through the group's retry topic. Push consumers of the group read that
        topic; a pull consumer does if it subscribes to `%RETRY%<group>`. This call does not
        acknowledge the message: the next poll or commit does, as for other messages.

        Args:
            message: as polled or pulled.
            error: `RetryLater`, `DeadLetter` or any other error; None: as `RetryLater()`.

        Raises:
            UsageError: `error` names other messages.
            TransportError, RemoteError: as `pull`; the message may be redelivered nevertheless.
        """
        await self._access.give_back(message, error)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest stored queue offset; equal to `max_offset` if there is no message.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._access.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be stored.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._access.max_offset(queue)

    async def offset_for_time(
        self, queue: MessageQueue, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the queue offset of the first message stored at `timestamp_ms` or later.

        Args:
            queue: the queue.
            timestamp_ms: epoch milliseconds, by the broker's clock.
            upper: return that of the last message stored at that time or before, instead.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._access.offset_for_time(queue, timestamp_ms, upper=upper)

    # Joining and leaving

    def _enter(self, mode: Mode) -> None:
        if self._mode not in (Mode.NONE, mode):
            raise UsageError("a consumer either assigns queues or subscribes to topics, not both")
        self._mode = mode

    def _join_by(self, subscription: SubscriptionData) -> None:
        self._subscriptions[subscription.topic] = subscription
        self._polled.restart_pulls(subscription.topic)
        self._join()

    async def _join_if_served(self, subscription: SubscriptionData) -> None:
        """Join once brokers have accepted the filter, unless the subscription changed meanwhile."""
        topic, refusal = subscription.topic, None
        try:
            await self._check_filters((subscription,))
        except RemoteError as error:
            refusal = error
        if self._unchecked.get(topic) is not subscription:
            return
        del self._unchecked[topic]
        if refusal is None:
            self._join_by(subscription)
        else:
            self._polled.fail(refusal)

    def _join(self) -> None:
        """Start rebalancing, or request a pass; send heartbeats."""
        if not self._is_rebalancing:
            self._is_rebalancing = True
            self._rebalance.start()
        self._instance.tasks.start(self._instance.heartbeat_all, "heartbeat to all brokers")
        self._rebalance.wake()

    async def _check_filters(self, subscriptions: Iterable[SubscriptionData]) -> None:
        timeout_ms = self._config.request_timeout_ms
        await look_up_and_check(self._instance, self.group, subscriptions, timeout_ms)

    def _end(self) -> None:
        self._polled.abort()
        self._callbacks.close()
        self._release_group(self._config.instance_name)

    # Callbacks of the client instance

    def _consumer_data(self) -> ConsumerData | None:
        if self._mode is not Mode.SUBSCRIBED:
            return None
        return ConsumerData(
            self.group,
            consume_type=ConsumeType.ACTIVELY,
            consume_from_where=self._config.consume_from_where,
            subscriptions=tuple(self._subscriptions.values()),
        )

    def _on_route_changed(self, topic: str) -> None:
        self._rebalance.wake()
        self._watch.on_route_changed(topic)

    def _on_registered(self, _: str) -> None:
        self._rebalance.wake()

    def _queue_states(self) -> Mapping[MessageQueue, QueueState]:
        return self._polled.states()

    async def _store_dead_letter(
        self, queue: MessageQueue, undecodable: UndecodableMessage
    ) -> bool:
        timeout_s = self._config.request_timeout_ms / 1000
        return await store_dead_letter(
            self._instance, self.group, queue, undecodable, timeout_s=timeout_s
        )

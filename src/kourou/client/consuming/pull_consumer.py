"""PullConsumer: polls assigned or subscribed queues, or reads any queue at any offset."""

from __future__ import annotations

from collections.abc import Iterable

from kourou.auth.credentials import AnyCredentials
from kourou.client.config import resolve_config
from kourou.client.consuming.client_requests import ClientRequests
from kourou.client.consuming.consumer import consumer_groups
from kourou.client.consuming.consumer_answers import ConsumerAnswers
from kourou.client.consuming.consumer_config import PullConsumerConfig, Start, with_start
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.membership.subscriptions import (
    look_up_and_check,
    needing_check,
    subscription_of,
)
from kourou.client.consuming.polling.polling import Mode, Polling
from kourou.client.consuming.polling.queue_turns import QueueCallback
from kourou.client.consuming.watching.topic_watch import TopicQueuesChanged, TopicWatch
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.user_functions import check_function
from kourou.errors import RemoteError, UsageError
from kourou.model.group import ConsumeType
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import check_client_group, check_topic
from kourou.protocol.clients import ConsumerData
from kourou.remoting.runtime import Runtime

__all__ = ["PullConsumer", "PullResult", "PullStatus"]


class PullConsumer(Polling):
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
        requests = ClientRequests(group, config.namespace)
        instance = ClientInstance(
            namesrv_addr,
            config,
            runtime,
            kind="pull consumer",
            consumer=self._consumer_data,
            handlers=requests.handlers(),
            on_route_changed=self._on_route_changed,
            on_registered=self._on_registered,
        )
        super().__init__(instance, group, config)
        self._rebalance = RebalanceLoop(
            instance, group, config, subscriptions=self._subscriptions, held=self._polled
        )
        self._rebalance.on_queues_changed = self._on_queues_changed
        self._is_rebalancing = False
        self._unchecked: dict[str, SubscriptionData] = {}  # brokers are checking their filters
        self._watch = TopicWatch(instance)
        self._answers = requests.target = ConsumerAnswers(
            instance,
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
            self._acquire_group()
        try:
            await super().start()
        except BaseException:
            self._release_group()
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
                self._acquire_group()
        self._enter(Mode.SUBSCRIBED)
        self._unchecked.pop(topic, None)
        self._queue_callbacks.pop(topic, None)
        if callback is not None:
            self._queue_callbacks[topic] = callback
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

    def _acquire_group(self) -> None:
        namesrv = self._instance.namesrv_addresses
        consumer_groups.acquire(self, self.group, namesrv, self._config.instance_name)

    def _end(self) -> None:
        self._polled.abort()
        if self._threads is not None:
            self._threads.close()
        self._release_group()

    def _release_group(self) -> None:
        namesrv = self._instance.namesrv_addresses
        consumer_groups.release(self, self.group, namesrv, self._config.instance_name)

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

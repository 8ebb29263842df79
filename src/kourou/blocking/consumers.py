"""The blocking push, pull and simple consumers."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, TypeVar

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import (
    Blocking,
    MessageIterator,
    background,
    blocking_method,
    loop_method,
)
from kourou.client.consuming.consumer import Consumer as AsyncConsumer
from kourou.client.consuming.consumer_config import (
    ConsumeMode,
    PullConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
    Start,
)
from kourou.client.consuming.popping.message_scope import MessageScope as AsyncMessageScope
from kourou.client.consuming.pull_consumer import PullConsumer as AsyncPullConsumer
from kourou.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from kourou.client.consuming.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from kourou.client.pop_result import PoppedMessage
from kourou.client.running import end_signals
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Runtime

ConsumerT = TypeVar("ConsumerT", AsyncPushConsumer, AsyncPullConsumer)


class Consumer(Blocking[ConsumerT]):
    """Iteration, hooks, statistics and health of a consumer."""

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this consumer."""
        return self._client.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues currently assigned to this consumer, sorted."""
        return self._client.queues

    def __iter__(self) -> MessageIterator:
        """Return an iterator over the messages; it ends when the consumer closes."""
        return MessageIterator(lambda: aiter(self._client))

    on_queues_changed = loop_method(AsyncConsumer.on_queues_changed)
    add_hook = loop_method(AsyncConsumer.add_hook)
    stats = loop_method(AsyncConsumer.stats)
    health = loop_method(AsyncConsumer.health)


class PushConsumer(Consumer[AsyncPushConsumer]):
    """Consumes messages as they arrive: the blocking form of `kourou.PushConsumer`.

    Messages go to a listener or are iterated by `for`. The listener should be a plain function: it
    runs on a thread of the consumer's pool and may block. A coroutine function would run in the
    background loop that all blocking clients share.
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
    ) -> None:
        super().__init__(
            lambda: AsyncPushConsumer(
                group,
                namesrv_addr,
                start=start,
                mode=mode,
                credentials=credentials,
                config=config,
                runtime=runtime,
            )
        )

    @property
    def consume_threads(self) -> int:
        """The number of messages that listeners process at the same time."""
        return self._client.consume_threads

    @consume_threads.setter
    def consume_threads(self, count: int) -> None:
        self.reconfigure(consume_threads=count)

    subscribe = loop_method(AsyncPushConsumer.subscribe)
    unsubscribe = loop_method(AsyncPushConsumer.unsubscribe)
    listen = loop_method(AsyncPushConsumer.listen)
    listen_in_batches = loop_method(AsyncPushConsumer.listen_in_batches)
    listen_orderly = loop_method(AsyncPushConsumer.listen_orderly)
    listen_orderly_in_batches = loop_method(AsyncPushConsumer.listen_orderly_in_batches)
    listen_orderly_and_commit = loop_method(AsyncPushConsumer.listen_orderly_and_commit)
    pause = loop_method(AsyncPushConsumer.pause)
    resume = loop_method(AsyncPushConsumer.resume)
    is_paused = loop_method(AsyncPushConsumer.is_paused)
    reconfigure = loop_method(AsyncPushConsumer.reconfigure)
    give_back = blocking_method(AsyncPushConsumer.give_back)

    def run_forever(self) -> None:
        """Wait until SIGINT (Ctrl-C) or SIGTERM, then close; or until `close` is called elsewhere.

        See `kourou.PushConsumer.run_forever`. Signals are handled only if the main thread calls
        this method.
        """
        with end_signals.installed():
            background.run(self._client.run_forever)


class PullConsumer(Consumer[AsyncPullConsumer]):
    """Polls messages on request: the blocking form of `kourou.PullConsumer`."""

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
        super().__init__(
            lambda: AsyncPullConsumer(
                group,
                namesrv_addr,
                start=start,
                credentials=credentials,
                config=config,
                runtime=runtime,
            )
        )

    # Subscriptions and assignment
    assign = blocking_method(AsyncPullConsumer.assign)
    subscribe = loop_method(AsyncPullConsumer.subscribe)
    unsubscribe = loop_method(AsyncPullConsumer.unsubscribe)
    call_for_queues = loop_method(AsyncPullConsumer.call_for_queues)
    on_topic_queues_changed = loop_method(AsyncPullConsumer.on_topic_queues_changed)

    # Polling and positions
    poll = blocking_method(AsyncPullConsumer.poll)
    seek = blocking_method(AsyncPullConsumer.seek)
    seek_to_beginning = blocking_method(AsyncPullConsumer.seek_to_beginning)
    seek_to_end = blocking_method(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking_method(AsyncPullConsumer.seek_to_time)
    pause = loop_method(AsyncPullConsumer.pause)
    resume = loop_method(AsyncPullConsumer.resume)
    position = loop_method(AsyncPullConsumer.position)
    commit = blocking_method(AsyncPullConsumer.commit)
    commit_soon = loop_method(AsyncPullConsumer.commit_soon)

    # Single queues
    pull = blocking_method(AsyncPullConsumer.pull)
    pull_or_wait = blocking_method(AsyncPullConsumer.pull_or_wait)
    pull_with_callback = loop_method(AsyncPullConsumer.pull_with_callback)
    fetch_subscribe_message_queues = blocking_method(
        AsyncPullConsumer.fetch_subscribe_message_queues
    )
    committed = blocking_method(AsyncPullConsumer.committed)
    give_back = blocking_method(AsyncPullConsumer.give_back)
    commit_offset = blocking_method(AsyncPullConsumer.commit_offset)
    min_offset = blocking_method(AsyncPullConsumer.min_offset)
    max_offset = blocking_method(AsyncPullConsumer.max_offset)
    offset_for_time = blocking_method(AsyncPullConsumer.offset_for_time)


class SimpleConsumer(Blocking[AsyncSimpleConsumer]):
    """Receives and settles single messages: the blocking form of `kourou.SimpleConsumer`."""

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None = None,
        *,
        start: Literal["earliest", "latest"] | None = None,
        credentials: AnyCredentials | None = None,
        config: SimpleConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncSimpleConsumer(
                group,
                namesrv_addr,
                start=start,
                credentials=credentials,
                config=config,
                runtime=runtime,
            )
        )

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this consumer."""
        return self._client.client_id

    subscribe = loop_method(AsyncSimpleConsumer.subscribe)
    unsubscribe = loop_method(AsyncSimpleConsumer.unsubscribe)
    receive = blocking_method(AsyncSimpleConsumer.receive)
    ack = blocking_method(AsyncSimpleConsumer.ack)
    ack_all = blocking_method(AsyncSimpleConsumer.ack_all)
    change_invisible = blocking_method(AsyncSimpleConsumer.change_invisible)
    give_back = blocking_method(AsyncSimpleConsumer.give_back)
    give_back_soon = loop_method(AsyncSimpleConsumer.give_back_soon)
    dead_letter = blocking_method(AsyncSimpleConsumer.dead_letter)
    renew = loop_method(AsyncSimpleConsumer.renew)
    add_hook = loop_method(AsyncSimpleConsumer.add_hook)
    stats = loop_method(AsyncSimpleConsumer.stats)
    health = loop_method(AsyncSimpleConsumer.health)

    def message_scope(self, message: PoppedMessage, *, renew_ms: int | None = None) -> MessageScope:
        """Settle the message at the end of the block; see `kourou.SimpleConsumer.message_scope`."""
        return MessageScope(self._client.message_scope(message, renew_ms=renew_ms))


class MessageScope:
    """The blocking form of the scope of `SimpleConsumer.message_scope`."""

    def __init__(self, scope: AsyncMessageScope) -> None:
        self._scope = scope

    def __enter__(self) -> PoppedMessage:
        return background.run(self._scope.__aenter__)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return background.run(lambda: self._scope.__aexit__(kind, error, traceback))

"""The blocking pull consumer."""

from __future__ import annotations

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import blocking_method, loop_method
from kourou.blocking.consumer import Consumer
from kourou.client.consuming.consumer_config import PullConsumerConfig, Start
from kourou.client.consuming.pull_consumer import PullConsumer as AsyncPullConsumer
from kourou.remoting.runtime import Runtime


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

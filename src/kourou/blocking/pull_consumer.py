"""The blocking pull consumer."""

from __future__ import annotations

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import calls, waits
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
    assign = waits(AsyncPullConsumer.assign)
    subscribe = calls(AsyncPullConsumer.subscribe)
    unsubscribe = calls(AsyncPullConsumer.unsubscribe)
    call_for_queues = calls(AsyncPullConsumer.call_for_queues)
    on_topic_queues_changed = calls(AsyncPullConsumer.on_topic_queues_changed)

    # Polling and positions
    poll = waits(AsyncPullConsumer.poll)
    seek = waits(AsyncPullConsumer.seek)
    seek_to_beginning = waits(AsyncPullConsumer.seek_to_beginning)
    seek_to_end = waits(AsyncPullConsumer.seek_to_end)
    seek_to_time = waits(AsyncPullConsumer.seek_to_time)
    pause = calls(AsyncPullConsumer.pause)
    resume = calls(AsyncPullConsumer.resume)
    position = calls(AsyncPullConsumer.position)
    commit = waits(AsyncPullConsumer.commit)
    commit_soon = calls(AsyncPullConsumer.commit_soon)

    # Single queues
    pull = waits(AsyncPullConsumer.pull)
    pull_or_wait = waits(AsyncPullConsumer.pull_or_wait)
    pull_with_callback = calls(AsyncPullConsumer.pull_with_callback)
    fetch_subscribe_message_queues = waits(AsyncPullConsumer.fetch_subscribe_message_queues)
    committed = waits(AsyncPullConsumer.committed)
    give_back = waits(AsyncPullConsumer.give_back)
    commit_offset = waits(AsyncPullConsumer.commit_offset)
    min_offset = waits(AsyncPullConsumer.min_offset)
    max_offset = waits(AsyncPullConsumer.max_offset)
    offset_for_time = waits(AsyncPullConsumer.offset_for_time)

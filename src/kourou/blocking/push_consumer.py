"""The blocking push consumer."""

from __future__ import annotations

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import background, blocking_method, loop_method
from kourou.blocking.consumer import Consumer
from kourou.client.consuming.consumer_config import PushConsumerConfig, Start
from kourou.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from kourou.client.running import end_signals
from kourou.remoting.runtime import Runtime


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
        credentials: AnyCredentials | None = None,
        config: PushConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncPushConsumer(
                group,
                namesrv_addr,
                start=start,
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

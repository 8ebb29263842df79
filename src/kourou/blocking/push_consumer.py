"""The blocking push consumer."""

from __future__ import annotations

from kourou.blocking.background import Blocking, Messages, calls, waits
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Runtime


class PushConsumer(Blocking[AsyncPushConsumer]):
    """Consumes messages as they come, as `kourou.PushConsumer`: by a listener, or by `for`.

    Make the listener a plain function: it runs on a thread of the consumer's pool and may block. A
    coroutine function would run in the background loop that all blocking clients share.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str,
        *,
        config: PushConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncPushConsumer(group, namesrv_addr, config=config, runtime=runtime)
        )

    @property
    def client_id(self) -> str:
        """What brokers call this consumer."""
        return self._client.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member consumes now, sorted."""
        return self._client.queues

    def __iter__(self) -> Messages:
        """Return a loop over the messages, which ends when the consumer closes."""
        return Messages(lambda: aiter(self._client))

    subscribe = calls(AsyncPushConsumer.subscribe)
    unsubscribe = calls(AsyncPushConsumer.unsubscribe)
    listen = calls(AsyncPushConsumer.listen)
    listen_in_batches = calls(AsyncPushConsumer.listen_in_batches)
    run_forever = waits(AsyncPushConsumer.run_forever)
    on_queues_changed = calls(AsyncPushConsumer.on_queues_changed)
    add_hook = calls(AsyncPushConsumer.add_hook)
    stats = calls(AsyncPushConsumer.stats)
    health = calls(AsyncPushConsumer.health)

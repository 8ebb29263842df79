"""The blocking producer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import Blocking, background, calls, waits
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.producer import Producer as AsyncProducer
from kourou.model.topic import DEFAULT_PRODUCER_GROUP
from kourou.remoting.runtime import Runtime

P = ParamSpec("P")


def _hands_over(
    submit: Callable[
        Concatenate[AsyncProducer, P], Coroutine[Any, Any, asyncio.Future[SendReceipt]]
    ],
) -> Callable[Concatenate[Blocking[AsyncProducer], P], concurrent.futures.Future[SendReceipt]]:
    """Return `submit` as a blocking method that returns a thread-safe future."""

    @functools.wraps(submit)
    def handed_over(
        self: Blocking[AsyncProducer], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[SendReceipt]:
        async def submitted() -> concurrent.futures.Future[SendReceipt]:
            return _for_threads(await submit(self._client, *args, **kwargs))

        return background.run(submitted)

    return handed_over


def _for_threads(
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

    def give_up(given_up: concurrent.futures.Future[SendReceipt]) -> None:
        if given_up.cancelled():
            loop.call_soon_threadsafe(receipt.cancel)

    receipt.add_done_callback(settle)
    outcome.add_done_callback(give_up)
    return outcome


class Producer(Blocking[AsyncProducer]):
    """Sends messages: the blocking form of `kourou.Producer`.

    `submit` returns a `concurrent.futures.Future`.
    """

    def __init__(
        self,
        group: str = DEFAULT_PRODUCER_GROUP,
        namesrv_addr: str | None = None,
        *,
        credentials: AnyCredentials | None = None,
        config: ProducerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncProducer(
                group, namesrv_addr, credentials=credentials, config=config, runtime=runtime
            )
        )

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this producer."""
        return self._client.client_id

    send = waits(AsyncProducer.send)
    send_batch = waits(AsyncProducer.send_batch)
    send_oneway = waits(AsyncProducer.send_oneway)
    submit = _hands_over(AsyncProducer.submit)
    request = waits(AsyncProducer.request)
    reply = waits(AsyncProducer.reply)
    recall = waits(AsyncProducer.recall)
    flush = waits(AsyncProducer.flush)
    fetch_publish_message_queues = waits(AsyncProducer.fetch_publish_message_queues)
    stats = calls(AsyncProducer.stats)
    health = calls(AsyncProducer.health)

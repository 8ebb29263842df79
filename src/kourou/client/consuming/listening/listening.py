"""How a push consumer gets its listener."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeVar

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listener_threads import ListenerThreads
from kourou.client.consuming.listening.listener_calls import (
    BatchListener,
    Listener,
    ListenerCall,
)
from kourou.client.consuming.listening.ordered_calls import ContextListener, OrderedCall
from kourou.client.consuming.watching.consume_watch import ConsumeWatch
from kourou.client.user_functions import check_function
from kourou.errors import UsageError
from kourou.remoting.runtime import Offload

_MESSAGE: Final = "a message"
_MESSAGES: Final = "a list of messages"

ListenerT = TypeVar("ListenerT", bound=Listener)
BatchListenerT = TypeVar("BatchListenerT", bound=BatchListener)
ContextListenerT = TypeVar("ContextListenerT", bound=ContextListener)


class Listening(ABC):
    """The methods that take a listener.

    It is a plain function, called on one of `consume_threads` threads of the consumer's own, or a
    coroutine function, called on the event loop. Each method returns the listener, so that
    it also is a decorator, and raises UsageError if the consumer was started or has a listener, or
    if this is no function that takes what it would be given. A listener that calls `sys.exit` ends
    the program; what it was given is delivered again.
    """

    group: str
    _config: PushConsumerConfig
    _watch: ConsumeWatch
    _call: ListenerCall | None
    _run_blocking: Offload | None
    _threads: ListenerThreads | None

    def listen(self, listener: ListenerT) -> ListenerT:
        """Have `listener` called with each message, many at a time and in any order.

        Returning acknowledges the message; raising gives it back, to be delivered again later.
        """
        run_blocking = self._prepare("listen", listener, _MESSAGE)
        self._call = ListenerCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Have `listener` called with up to `consume_batch_size` messages of one queue.

        It gets what is there, and does not wait for more. Raising gives all of them back.
        """
        run_blocking = self._prepare("listen_in_batches", listener, _MESSAGES)
        self._call = ListenerCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_orderly(self, listener: ListenerT) -> ListenerT:
        """Have `listener` called with the messages of each queue one after the other, in order.

        No other member gets messages of the queue meanwhile: it is locked, but for a group that
        broadcasts. Producers put messages that belong together into one queue by `sharding_key`.

        Returning acknowledges the message. Raising has the queue wait for `suspend_queue_ms`, or as
        long as a `RetryLater` says, and the same message given again, without an end; with
        `max_reconsume_times`, or for a `DeadLetter`, it goes into `%DLQ%group`, and the queue goes
        on. A listener that never ends holds up its queue, and keeps it from other members until
        `consume_timeout_ms` after they were to have it.
        """
        run_blocking = self._prepare("listen_orderly", listener, _MESSAGE)
        self._call = OrderedCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_orderly_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Have `listener` called as by `listen_orderly`, with up to `consume_batch_size` messages.

        Raising has all of them given again; a `RetryLater` or `DeadLetter` that names messages, the
        first of those and all after it.
        """
        run_blocking = self._prepare("listen_orderly_in_batches", listener, _MESSAGES)
        self._call = OrderedCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_orderly_and_commit(self, listener: ContextListenerT) -> ContextListenerT:
        """Have `listener` called as by `listen_orderly_in_batches`, and commit when it says so.

        It gets messages and an `OrderlyContext`. After `context.commit()` all is done that it was
        given of the queue so far; after `context.rollback()` it is given all again since the last
        commit. A queue that goes to another member begins there, too. Returning without either
        has the next messages given.
        """
        run_blocking = self._prepare(
            "listen_orderly_and_commit", listener, _MESSAGES, "an OrderlyContext"
        )
        self._call = OrderedCall(
            listener,
            is_batch=True,
            is_committing=True,
            run_blocking=run_blocking,
            watch=self._watch,
        )
        return listener

    @abstractmethod
    def _check_new(self, action: str) -> None:
        """Refuse what can be done before the start only.

        Raises:
            UsageError: the consumer was started.
        """

    def _prepare(self, action: str, listener: object, *takes: str) -> Offload:
        """Return what runs a listener that is a plain function."""
        self._check_new(action)
        check_function(listener, "the listener", *takes)
        if self._call is not None:
            raise UsageError("the consumer has a listener already")
        if self._run_blocking is not None:
            return self._run_blocking
        self._threads = ListenerThreads(self._config.consume_threads, f"kourou-{self.group}")
        return self._threads

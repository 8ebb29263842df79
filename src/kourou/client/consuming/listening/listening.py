"""Registration of a push consumer's listener."""

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
    """The methods that register a listener.

    A listener is a plain function, called on one of `consume_threads` threads that belong to the
    consumer, or a coroutine function, called on the event loop. Each method returns the listener,
    so that it can be used as a decorator. It raises UsageError if the consumer was started, has a
    listener already, or if the listener does not take the arguments. A listener that calls
    `sys.exit` ends the program; its messages are redelivered.
    """

    group: str
    _config: PushConsumerConfig
    _watch: ConsumeWatch
    _call: ListenerCall | None
    _run_blocking: Offload | None
    _threads: ListenerThreads | None

    def listen(self, listener: ListenerT) -> ListenerT:
        """Call `listener` with each message, concurrently and in any order.

        Returning acknowledges the message; raising has it redelivered later.
        """
        run_blocking = self._prepare("listen", listener, _MESSAGE)
        self._call = ListenerCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Call `listener` with up to `consume_batch_size` messages of one queue.

        A batch has the messages that are ready; it does not wait for more. Raising has all of them
        redelivered.
        """
        run_blocking = self._prepare("listen_in_batches", listener, _MESSAGES)
        self._call = ListenerCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )
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
        run_blocking = self._prepare("listen_orderly", listener, _MESSAGE)
        self._call = OrderedCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_orderly_in_batches(self, listener: BatchListenerT) -> BatchListenerT:
        """Call `listener` as `listen_orderly` does, with up to `consume_batch_size` messages.

        Raising has all of them delivered again. A `RetryLater` or `DeadLetter` that names messages
        affects the first of those and all after it.
        """
        run_blocking = self._prepare("listen_orderly_in_batches", listener, _MESSAGES)
        self._call = OrderedCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )
        return listener

    def listen_orderly_and_commit(self, listener: ContextListenerT) -> ContextListenerT:
        """Call `listener` as `listen_orderly_in_batches` does; the listener decides when to commit.

        It is called with messages and an `OrderlyContext`. After `context.commit()` all messages of
        the queue delivered so far are done. After `context.rollback()` all messages since the last
        commit are delivered again; so are they if the queue moves to another member. If it returns
        without either, the next messages are delivered.
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
        """Check that the consumer was not started.

        Raises:
            UsageError: it was started; `action` is only possible before.
        """

    def _prepare(self, action: str, listener: object, *takes: str) -> Offload:
        """Check the listener, and return the offload that runs it if it is a plain function."""
        self._check_new(action)
        check_function(listener, "the listener", *takes)
        if self._call is not None:
            raise UsageError("the consumer has a listener already")
        if self._run_blocking is not None:
            return self._run_blocking
        self._threads = ListenerThreads(self._config.consume_threads, f"kourou-{self.group}")
        return self._threads

"""The listener of a push consumer, and the threads that call it."""

from __future__ import annotations

from typing import Final

from kourou.client.consuming.listening.listener_calls import (
    BatchListener,
    Listener,
    ListenerCall,
)
from kourou.client.consuming.listening.ordered_calls import ContextListener, OrderedCall
from kourou.client.consuming.watching.consume_hooks import ConsumeWatch
from kourou.client.user_functions import UserThreads, check_function
from kourou.errors import UsageError
from kourou.remoting.runtime import Offload

_MESSAGE: Final = "a message"
_MESSAGES: Final = "a list of messages"


class RegisteredListener:
    """The listener of a push consumer, once it is registered.

    Each method that registers a listener raises UsageError if there is one already, or if it does
    not take the arguments.

    Args:
        group: the consumer group, for the names of threads.
        threads_max: number of threads for a listener that is a plain function.
        watch: reports each call to hooks and statistics.
        run_blocking: runs plain functions instead of those threads; None: the threads do.

    Attributes:
        call: calls the listener; None: none is registered.
        threads: call the listener; None: none is registered, or `run_blocking` was given.
    """

    def __init__(
        self, group: str, threads_max: int, watch: ConsumeWatch, run_blocking: Offload | None
    ) -> None:
        self._group = group
        self._threads_max = threads_max
        self._watch = watch
        self._run_blocking = run_blocking
        self.call: ListenerCall | None = None
        self.threads: UserThreads | None = None

    def register(self, listener: Listener) -> None:
        """Register a listener of single messages."""
        run_blocking = self._prepare(listener, _MESSAGE)
        self.call = ListenerCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )

    def register_batch(self, listener: BatchListener) -> None:
        """Register a listener of lists of messages."""
        run_blocking = self._prepare(listener, _MESSAGES)
        self.call = ListenerCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )

    def register_ordered(self, listener: Listener) -> None:
        """Register an ordered listener of single messages."""
        run_blocking = self._prepare(listener, _MESSAGE)
        self.call = OrderedCall(
            listener, is_batch=False, run_blocking=run_blocking, watch=self._watch
        )

    def register_ordered_batch(self, listener: BatchListener) -> None:
        """Register an ordered listener of lists of messages."""
        run_blocking = self._prepare(listener, _MESSAGES)
        self.call = OrderedCall(
            listener, is_batch=True, run_blocking=run_blocking, watch=self._watch
        )

    def register_committing(self, listener: ContextListener) -> None:
        """Register an ordered listener of lists of messages that decides when to commit."""
        run_blocking = self._prepare(listener, _MESSAGES, "an OrderlyContext")
        self.call = OrderedCall(
            listener,
            is_batch=True,
            is_committing=True,
            run_blocking=run_blocking,
            watch=self._watch,
        )

    def resize(self, threads_max: int) -> None:
        """Set the number of threads; a running call continues on its thread."""
        self._threads_max = threads_max
        if self.threads is not None:
            self.threads.resize(threads_max)

    def close(self) -> None:
        """End the threads with their running calls."""
        if self.threads is not None:
            self.threads.close()

    def _prepare(self, listener: object, *takes: str) -> Offload:
        """Check the listener, and return the offload that runs it if it is a plain function."""
        check_function(listener, "the listener", *takes)
        if self.call is not None:
            raise UsageError("the consumer has a listener already")
        if self._run_blocking is not None:
            return self._run_blocking
        self.threads = UserThreads(self._threads_max, f"kourou-{self._group}")
        return self.threads

"""Thread of a tracker: receives the reports of tasks, and commits the ends of batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from kourou.spark.group_commits import COMMIT_TIMEOUT_MS, GroupCommits
from kourou.spark.report_channel import ReceiverAddress, ReportReceiver
from kourou.spark.stream_progress import SourceProgress
from kourou.spark.task_reports import ReportTable, TaskTotals

_T = TypeVar("_T")

_CALL_TIMEOUT_S: Final = 10.0
"""How long to wait for the event loop, in which no call takes long."""


class TrackerThread:
    """An event loop in a daemon thread; the methods are for other threads.

    Args:
        address: address and token for the workers; port 0 means any free one. None: no receiver.
        bind_host: address or name to listen on.

    Attributes:
        address: the address with its port; None without a receiver.

    Raises:
        ConfigError: the port cannot be bound.
    """

    def __init__(self, address: ReceiverAddress | None = None, bind_host: str = "") -> None:
        self._reports = ReportTable()
        self._commits = GroupCommits()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._receiver: ReportReceiver | None = None
        self.address: ReceiverAddress | None = None
        if address is not None:
            try:
                self._receiver = ReportReceiver(
                    self._loop, bind_host, address.port, address.token, self._reports.add
                )
            except BaseException:
                self._loop.close()
                raise
            self.address = replace(address, port=self._receiver.port)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kourou-spark-tracker", daemon=True
        )
        self._thread.start()

    def totals(self, query_id: str, batch_id: int) -> TaskTotals | None:
        """Return the totals of a batch's tasks, once; None if none reported."""

        def take() -> TaskTotals | None:
            if self._receiver is not None:
                self._receiver.drain()  # tasks report before Spark reports the batch
            return self._reports.take(UUID(query_id), batch_id)

        return self._call(take)

    def forget(self, query_id: str) -> None:
        """Drop the reports of a query."""
        self._call(lambda: self._reports.forget(UUID(query_id)))

    def commit(self, source: SourceProgress) -> None:
        """Begin to commit the end of a batch for the group of its source, if it has one."""
        if source.commit is not None:
            self._call(lambda: self._commits.submit(source))

    def close(self) -> None:
        """Wait for commits, for a limited time; then close. Later calls do nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        timeout_s = COMMIT_TIMEOUT_MS / 1000
        try:
            asyncio.run_coroutine_threadsafe(self._close(timeout_s), self._loop).result(
                timeout_s + _CALL_TIMEOUT_S
            )
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    async def _close(self, timeout_s: float) -> None:
        if self._receiver is not None:
            self._receiver.close()
        await self._commits.close(timeout_s)

    def _call(self, function: Callable[[], _T]) -> _T | None:
        """Return the result of a function in the thread; None if it is closed."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised in the calling thread
                done.set_exception(error)

        with self._lock:
            if self._is_closed:
                return None
            self._loop.call_soon_threadsafe(run)
        return done.result(_CALL_TIMEOUT_S)

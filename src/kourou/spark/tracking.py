"""Progress and metrics of the streaming queries of a session, in the user's driver program.

Data sources in Python have neither listeners nor metrics. Here a listener of the session computes
the progress and commits it for `commitGroup`, and tasks report their counts by datagrams.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from kourou.errors import UsageError
from kourou.spark.report_channel import RECEIVER_SETTING, ReceiverAddress
from kourou.spark.stream_progress import StreamProgress, source_progress, stream_progress
from kourou.spark.task_reports import TOKEN_BYTES
from kourou.spark.tracker_thread import TrackerThread

log = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[StreamProgress], object]

EVENTS_TIMEOUT_S: Final = 10.0
"""How long to wait for the last events of queries that have ended."""

_QUERIES_MAX: Final = 1_000
"""Number of queries whose progress is held; the one that was started first is forgotten first."""

_SESSION_ERRORS: Final = (
    Py4JError, PySparkException, OSError, AttributeError, AssertionError, ValueError,
)  # fmt: skip
"""Errors of PySpark's calls on a session that was stopped, of Spark Connect's too."""


class Tracker:
    """Tracks the streaming queries of a session that read topics; created by `track`.

    Usable from any thread, and as a context manager that stops at its end.
    """

    def __init__(self, spark: SparkSession, on_progress: Callback | None, port: int) -> None:
        self._spark = spark
        if _is_remote(spark):
            self._thread = TrackerThread()
        else:
            host = spark.conf.get("spark.driver.host")
            self._thread = TrackerThread(
                ReceiverAddress(host, port, secrets.token_bytes(TOKEN_BYTES)),
                bind_host=spark.conf.get("spark.driver.bindAddress", host),
            )
            spark.conf.set(RECEIVER_SETTING, str(self._thread.address))
        self._key = _key(spark)
        self._events = _Events(self._thread, on_progress)
        spark.streams.addListener(self._events)
        with _lock:
            _trackers[self._key] = self

    @property
    def port(self) -> int | None:
        """UDP port of the receiver of task reports; None with Spark Connect."""
        address = self._thread.address
        return None if address is None else address.port

    def latest(self, query: object) -> StreamProgress | None:
        """Return the progress at the end of a query's last batch; None before the first one.

        Spark reports the end of a batch shortly afterwards. If the query has ended, this waits for
        the last report, at most `EVENTS_TIMEOUT_S`, except in `on_progress`.

        Args:
            query: the query, its id, or its name; of several with one name, the last started.
        """
        query_id = self._events.id_of(str(getattr(query, "id", query)))
        if query_id is None:
            return None
        self._await_ended({query_id})
        return self._events.latest(query_id)

    def replace_callback(self, on_progress: Callback) -> None:
        """Call another function with each progress from now on."""
        self._events.on_progress = on_progress

    def stop(self) -> None:
        """Wait for the last reports and commits, for a limited time; then stop tracking.

        Queries continue. A second call does nothing.
        """
        with _lock:
            if _trackers.pop(self._key, None) is None:
                return
        self._await_ended(None)
        try:
            self._spark.streams.removeListener(self._events)
            if not _is_remote(self._spark) and _key(self._spark) == self._key:
                self._spark.conf.unset(RECEIVER_SETTING)
        except _SESSION_ERRORS as error:
            log.debug("spark_session.missed reason=%s", error)
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _await_ended(self, query_ids: set[str] | None) -> None:
        """Wait for the last events of those of the queries that have ended; None: of all."""
        try:
            active = {str(query.id) for query in self._spark.streams.active}
        except _SESSION_ERRORS as error:
            log.debug("spark_session.missed reason=%s", error)
        else:
            self._events.await_ended(query_ids, active)


_trackers: Final[dict[str, Tracker]] = {}
"""Running trackers by `_key` of their sessions."""

_lock: Final = threading.RLock()


def track(spark: SparkSession, *, on_progress: Callback | None = None, port: int = 0) -> Tracker:
    """Track the streaming queries of a session that read topics, until `Tracker.stop`.

    Each finished batch has a `StreamProgress`, from `Tracker.latest` and `on_progress`, and an
    entry in the log; its end is committed for the option commitGroup. The totals of its tasks are
    known for queries that are started afterwards, except with Spark Connect. A second call returns
    the running tracker.

    Args:
        spark: the session.
        on_progress: called with each progress, in the thread of Spark's listeners, which it must
            not block; replaces that of an earlier call.
        port: UDP port on which executors reach this program; 0: any free one.

    Raises:
        UsageError: the session is tracked on another port already, or is one of Spark Connect,
            which has no port.
        ConfigError: the port cannot be used.
    """
    if not callable(getattr(getattr(spark, "conf", None), "set", None)):
        raise UsageError(f"track() has {spark!r:.200}, and needs a SparkSession")
    if port and _is_remote(spark):
        raise UsageError(
            f"port is {port}, but tasks do not report to a program that uses Spark Connect, which "
            "is not the driver: omit port"
        )
    with _lock:
        tracker = _trackers.get(_key(spark))
        if tracker is None:
            return Tracker(spark, on_progress, port)
    if port not in (0, tracker.port):
        raise UsageError(
            f"port is {port}, but the session is tracked on port {tracker.port} already: "
            "call stop() of that tracker first"
        )
    if on_progress is not None:
        tracker.replace_callback(on_progress)
    return tracker


def _is_remote(spark: object) -> bool:
    """Whether a session is one of Spark Connect, whose driver is another program."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _key(spark: SparkSession) -> str:
    """Return a text that identifies the session while it is tracked.

    Several objects of PySpark may stand for one session, but they have its settings.
    """
    if _is_remote(spark):
        return str(spark.session_id)
    return spark.conf.get(RECEIVER_SETTING, None) or ""


@dataclass(slots=True)
class _Query:
    """A query of the session.

    Attributes:
        latest: None before the end of its first batch.
        is_ended: Spark has reported the end of its last run.
    """

    name: str | None
    latest: StreamProgress | None = None
    is_ended: bool = False


class _Events(StreamingQueryListener):  # type: ignore[misc]  # PySpark is Any to us
    """Listener that holds the progress of each query. Spark calls it from several threads.

    Attributes:
        on_progress: the user's function; None for none.
    """

    def __init__(self, thread: TrackerThread, on_progress: Callback | None) -> None:
        self.on_progress = on_progress
        self._thread = thread
        self._queries: dict[str, _Query] = {}  # those started last at the end
        self._changed = threading.Condition()
        self._callback_thread: int | None = None

    def id_of(self, text: str) -> str | None:
        """Return the id of a query by its id or name; None if there is none."""
        with self._changed:
            found = [id_ for id_, held in self._queries.items() if text in (id_, held.name)]
        return found[-1] if found else None

    def latest(self, query_id: str) -> StreamProgress | None:
        with self._changed:
            held = self._queries.get(query_id)
            return None if held is None else held.latest

    def await_ended(self, query_ids: set[str] | None, active: set[str]) -> None:
        """Wait for the last event of each query that is not active; of `query_ids` if given."""
        if threading.get_ident() == self._callback_thread:
            return  # Spark sends the next event after this one
        with self._changed:
            awaited = [
                held
                for id_, held in self._queries.items()
                if id_ not in active and (query_ids is None or id_ in query_ids)
            ]
            self._changed.wait_for(lambda: all(held.is_ended for held in awaited), EVENTS_TIMEOUT_S)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401 - Spark's name
        query_id = str(event.id)
        with self._changed:
            held = self._queries.pop(query_id, None)
            self._queries[query_id] = _Query(event.name, None if held is None else held.latest)
            while len(self._queries) > _QUERIES_MAX:
                del self._queries[next(iter(self._queries))]
        self._thread.forget(query_id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401
        report = event.progress
        sources = [one for one in map(source_progress, report.sources) if one is not None]
        if not sources:
            return
        for source in sources:
            self._thread.commit(source)
        tasks = self._thread.totals(str(report.id), report.batchId)
        progress = stream_progress(report, sources, tasks)
        with self._changed:
            self._queries.setdefault(progress.query_id, _Query(progress.name)).latest = progress
        log.info(
            "spark_batch.finished query=%s batch=%d rows=%d behind_max=%s",
            progress.name or progress.query_id, progress.batch_id, progress.rows,
            progress.max_offsets_behind_latest,
        )  # fmt: skip
        self._pass_on(progress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401
        query_id = str(event.id)
        self._thread.forget(query_id)
        with self._changed:
            if query_id in self._queries:
                self._queries[query_id].is_ended = True
            self._changed.notify_all()

    def _pass_on(self, progress: StreamProgress) -> None:
        if self.on_progress is None:
            return
        self._callback_thread = threading.get_ident()
        try:
            self.on_progress(progress)
        except Exception:  # the user's function must not end the tracking
            log.exception("spark_callback.failed query=%s", progress.query_id)
        finally:
            self._callback_thread = None

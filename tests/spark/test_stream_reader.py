"""Tests of the reader of a stream against a real broker, called as Spark calls it.

Spark logs the end of a batch before it reads the batch, and starts the next one there. The class
`Query` does so too, with the texts of the offsets as the checkpoint.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.clock import SystemClock
from kourou.errors import ConfigError, DataLossError
from kourou.model.message import Message
from kourou.spark.read_options import parse_read_options
from kourou.spark.stream_reader import StreamReader

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.slow]

HOUR_MS = 3_600_000


class Query:
    """A streaming query and its checkpoint.

    Attributes:
        options: those of the source; a change applies from the next `run` on.
        now_ms: the time to which a start such as -1h refers; None: now.
        ends: the logged end of each batch.
        bodies: the numbers that were read, batch by batch.
    """

    def __init__(self, namesrv: str, *, now_ms: int | None = None, **options: str) -> None:
        self.now_ms = now_ms
        self.options = {"nameServer": namesrv, "startingOffsets": "earliest", **options}
        self.ends: list[str] = []
        self.bodies: list[list[int]] = []

    def run(self, before_read: Callable[[], None] | None = None) -> list[int]:
        """Read what is there as a new run of the query does; return what the batches had.

        Args:
            before_read: called once, when the first batch is logged and not read yet.
        """
        options = parse_read_options(self.options, is_stream=True, now_ms=self.now_ms)
        reader = StreamReader(options, ["body", "queueId", "queueOffset"])
        read: list[int] = []
        try:
            reader.prepareForTriggerAvailableNow()
            limit = reader.getDefaultReadLimit()
            if len(self.ends) > len(self.bodies):
                read += self._read(reader)
            while True:
                end = json.dumps(reader.latestOffset(self._start(len(self.ends), reader), limit))
                if end == (self.ends or [""])[-1]:
                    return read
                self.ends.append(end)
                if before_read is not None:
                    before_read()
                    before_read = None
                read += self._read(reader)
        finally:
            reader.stop()

    def warnings(self, caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
        """Run; return the warnings of this event."""
        caplog.clear()
        self.run()
        return [text for text in caplog.messages if text.startswith(event)]

    def _start(self, batch: int, reader: StreamReader) -> dict[str, object]:
        return dict(json.loads(self.ends[batch - 1]) if batch else reader.initialOffset())

    def _read(self, reader: StreamReader) -> list[int]:
        batch = len(self.bodies)
        partitions = reader.partitions(self._start(batch, reader), json.loads(self.ends[batch]))
        rows = [
            int(body.as_py())
            for partition in partitions
            for table in reader.read(partition)
            for body in table.column("body")
        ]
        self.bodies.append(rows)
        return sorted(rows)


@pytest.fixture
def recreate(namesrv: str) -> Callable[[str], None]:
    """Function that deletes a topic, and creates it again with two queues."""

    async def main(topic: str) -> None:
        async with AdminClient(namesrv) as admin:
            await admin.delete_topic(topic)
            await admin.create_topic(topic, queues=2)

    return lambda topic: asyncio.run(main(topic))


@pytest.fixture
def resize(namesrv: str) -> Callable[[str, int], None]:
    """Function that sets the number of queues of a topic."""

    async def main(topic: str, queues: int) -> None:
        async with AdminClient(namesrv) as admin:
            await admin.update_topic(topic, queues=queues)

    return lambda topic, queues: asyncio.run(main(topic, queues))


def messages(topic: str, *numbers: int) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(*numbers)]


def test_topic_created_again_that_is_longer_than_before_is_a_loss_once(
    namesrv: str,
    publish: Publish,
    recreate: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(messages("reader_outgrown", 10))
    query = Query(namesrv, topic="reader_outgrown")
    assert query.run() == [*range(10)]
    recreate("reader_outgrown")
    publish(messages("reader_outgrown", 100, 140))

    with pytest.raises(
        DataLossError, match=r"queue 0 of 'reader_outgrown' .* created again, .* 5 of the deleted"
    ):
        query.run()

    query.options["failOnDataLoss"] = "false"
    assert len(query.warnings(caplog, "spark_offsets.lost")) == 2
    assert sorted(query.bodies[-1]) == [*range(100, 140)]
    assert not query.warnings(caplog, "spark_offsets")
    query.options["failOnDataLoss"] = "true"
    assert query.run() == []


def test_batch_planned_before_its_topic_was_created_again_is_not_read_from_the_new_one(
    namesrv: str, publish: Publish, recreate: Callable[[str], None]
) -> None:
    publish(messages("reader_replaced", 40))
    query = Query(namesrv, topic="reader_replaced")

    def replace_topic() -> None:
        recreate("reader_replaced")
        publish(messages("reader_replaced", 100, 160))

    with pytest.raises(DataLossError, match=r"were deleted since the read was planned .* again"):
        query.run(replace_topic)

    query.options["failOnDataLoss"] = "false"
    assert query.run() == [*range(100, 160)]
    assert query.bodies[0] == []


def test_deleted_topic_without_a_route_is_a_loss_once(
    namesrv: str, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    publish(messages("reader_deleted", 10))
    query = Query(namesrv, topic="reader_deleted", failOnDataLoss="false")
    query.run()

    async def delete() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.delete_topic("reader_deleted")

    asyncio.run(delete())

    lost = query.warnings(caplog, "spark_offsets.lost")
    assert [text.split(" on ")[0] for text in lost] == [
        f"spark_offsets.lost reason=queue {number} of 'reader_deleted'" for number in range(2)
    ]
    assert not query.warnings(caplog, "spark_offsets")
    publish(messages("reader_deleted", 100, 103))
    assert len(query.warnings(caplog, "spark_offsets.returned")) == 2
    assert sorted(query.bodies[-1]) == [100, 101, 102]


def test_queue_that_a_topic_no_longer_has_is_a_loss_once_and_read_on_when_it_is_back(
    namesrv: str,
    publish: Publish,
    resize: Callable[[str, int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(messages("reader_shrunk", 20))
    query = Query(namesrv, topic="reader_shrunk", commitGroup="reader_shrunk_progress")
    query.run()
    resize("reader_shrunk", 1)

    with pytest.raises(DataLossError, match=r"queue 1 of 'reader_shrunk' .* not exist any more"):
        query.run()

    query.options["failOnDataLoss"] = "false"
    assert len(query.warnings(caplog, "spark_offsets.lost")) == 1
    assert not query.warnings(caplog, "spark")
    query.options["failOnDataLoss"] = "true"
    assert query.run() == []
    publish(messages("reader_shrunk", 20, 40))
    [returned] = query.warnings(caplog, "spark_offsets")
    assert returned.endswith("queue_id=1) offset=10")
    assert sorted(query.bodies[-1]) == [*range(20, 40)]


def test_queue_that_disappears_before_it_is_read_is_a_loss(
    namesrv: str, publish: Publish, resize: Callable[[str, int], None]
) -> None:
    publish(messages("reader_short", 20))
    query = Query(namesrv, topic="reader_short")

    with pytest.raises(DataLossError, match=r"queue 1 of 'reader_short' .* has 1 readable queues"):
        query.run(lambda: resize("reader_short", 1))

    query.options["failOnDataLoss"] = "false"
    # The queue of the first message is random.
    assert query.run() in ([*range(0, 20, 2)], [*range(1, 20, 2)])


def test_changed_topics_are_refused_with_option_topics_and_remedy(
    namesrv: str, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("reader_a", "reader_b"):
        publish(messages(topic, 10))
    query = Query(namesrv, subscribe="reader_a,reader_b")
    query.run()

    query.options["subscribe"] = "reader_b"
    with pytest.raises(ConfigError) as caught:
        query.run()
    assert str(caught.value) == (
        "subscribe is 'reader_b', but the checkpoint has 2 other queues, of 'reader_a': select "
        "them too, use a new checkpointLocation, or set failOnDataLoss to false to continue "
        "without them"
    )

    query.options["failOnDataLoss"] = "false"
    publish(messages("reader_b", 10, 20))
    assert len(query.warnings(caplog, "spark_offsets.deselected")) == 1
    assert not query.warnings(caplog, "spark_offsets")
    assert sorted(query.bodies[-1]) == [*range(10, 20)]
    publish(messages("reader_a", 20, 30))
    query.options |= {"failOnDataLoss": "true", "subscribe": "reader_a,reader_b"}
    assert query.run() == [*range(20, 30)]


def test_another_topic_starts_at_its_first_message_if_losses_are_accepted(
    namesrv: str, publish: Publish
) -> None:
    for topic in ("reader_old", "reader_new"):
        publish(messages(topic, 10))
    query = Query(namesrv, topic="reader_old")
    query.run()

    query.options |= {"topic": "reader_new", "failOnDataLoss": "false", "startingOffsets": "latest"}
    assert query.run() == [*range(10)]


class KilledError(Exception):
    """Ends a run between two steps of Spark."""


def kill() -> None:
    raise KilledError


def test_relative_start_is_settled_with_batch_0_and_kept_by_later_runs(
    namesrv: str, publish: Publish
) -> None:
    """A day later, -1h is behind all messages, which would then be left out."""
    publish(messages("relative", 3))
    now_ms = SystemClock().now_ms()
    stream = Query(namesrv, now_ms=now_ms, topic="relative", startingTimestamp="-1h")
    del stream.options["startingOffsets"]
    with pytest.raises(KilledError):
        stream.run(before_read=kill)
    assert (len(stream.ends), stream.bodies) == (1, [])  # batch 0 is logged, and was not read
    publish(messages("relative", 3, 5))

    stream.now_ms = now_ms + 24 * HOUR_MS
    assert stream.run() == [0, 1, 2, 3, 4]
    publish(messages("relative", 5, 6))
    assert stream.run() == [5]
    assert sorted(chain(*stream.bodies)) == [0, 1, 2, 3, 4, 5]


def test_relative_start_that_was_not_logged_is_settled_by_the_next_run(
    namesrv: str, publish: Publish
) -> None:
    publish(messages("unsettled", 3))
    day = {"startingOffsetsByTimestampStrategy": "latest"}
    now_ms = SystemClock().now_ms()
    stream = Query(namesrv, topic="unsettled", startingTimestamp="-1h", now_ms=now_ms, **day)
    del stream.options["startingOffsets"]
    reader = StreamReader(
        parse_read_options(stream.options, is_stream=True, now_ms=now_ms), ["body"]
    )
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.stop()  # killed before Spark has logged the end of batch 0

    stream.now_ms = now_ms + 24 * HOUR_MS
    assert stream.run() == []
    publish(messages("unsettled", 3, 4))
    assert stream.run() == [3]

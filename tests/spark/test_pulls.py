"""Tests of pulls of ranges: slices, progress and order, with a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import (
    InvalidParameterError,
    ProtocolError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.spark.planning import QueueBounds, QueueRange
from kourou.spark.pulls import Pulled, Puller
from kourou.spark.read_options import ReadOptions, parse_read_options
from kourou.testing.loop import run_virtual

Q0, Q1 = (MessageQueue("flights", "broker-a", number) for number in range(2))
OPTIONS = parse_read_options({"nameServer": "localhost:9876", "topic": "flights"}, is_stream=False)
FILTERED = replace(OPTIONS, sub_expression="UA")
HOST = ("127.0.0.1", 10911)


class ScriptedBroker:
    """Answers pulls of queues that hold the offsets `held` to 1,000,000.

    Attributes:
        asked: the pulls: offset and number of messages.
        in_flight_max: maximum number of pulls in progress.
    """

    def __init__(
        self,
        *,
        messages_max: int = 32,
        held: int = 0,
        every: int = 1,
        delay_s: float = 0.001,
        answers: Sequence[PullResult | Exception] = (),
    ) -> None:
        self._messages_max = messages_max
        self._held = held
        self._every = every
        self._delay_s = delay_s
        self._answers = list(answers)
        self._in_flight = 0
        self.asked: list[tuple[int, int]] = []
        self.in_flight_max = 0
        self.masters_asked = 0
        self.topic_begins: set[int | None] = set()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        *,
        master_only: bool = False,
        topic_begin: int | None = None,
    ) -> PullResult:
        self.asked.append((offset, max_messages))
        self.topic_begins.add(topic_begin)
        self.masters_asked += master_only
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            # The first pulls take longest, so that later ones are answered before them.
            await asyncio.sleep(self._delay_s / len(self.asked))
        finally:
            self._in_flight -= 1
        if self._answers:
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if offset < self._held:
            return answer_of(queue, PullStatus.OFFSET_ILLEGAL, self._held)
        count = min(max_messages, self._messages_max)
        matching = range(-(-offset // self._every) * self._every, 1_000_000, self._every)[:count]
        return answer_of(queue, PullStatus.FOUND, matching[-1] + 1, *matching)


def answer_of(
    queue: MessageQueue, status: PullStatus, next_offset: int, *offsets: int
) -> PullResult:
    draft = RecordDraft(b"flights", 0, queue.queue_id, 0, 1, HOST, HOST, 0, 0, b"body", b"")
    raw = b"".join(encode_record(draft, offset, offset * 100, 2) for offset in offsets)
    return PullResult(
        queue, status, next_offset=next_offset, min_offset=0, max_offset=1_000_000, raw=raw
    )


def pull_all(
    broker: ScriptedBroker, ranges: Iterable[QueueRange], options: ReadOptions = OPTIONS
) -> list[Pulled]:
    async def main() -> list[Pulled]:
        puller = Puller(broker, ranges, options)
        pulled: list[Pulled] = []
        while portion := await puller.next_portion(100, 1 << 20):
            pulled += portion
        await puller.close()
        return pulled

    return run_virtual(main())


def covered(pulled: Iterable[Pulled], queue: MessageQueue = Q0) -> list[int]:
    """Return the offsets that the answers cover, in their order."""
    return [
        offset
        for one in pulled
        if one.answer.queue == queue
        for offset in range(one.answer.start, one.answer.until)
    ]


@pytest.mark.parametrize(("messages_max", "in_flight"), [(1, 8), (7, 8), (32, 8), (300, 1)])
def test_range_is_covered_once_and_in_order(messages_max: int, in_flight: int) -> None:
    broker = ScriptedBroker(messages_max=messages_max)

    pulled = pull_all(broker, [QueueRange(Q0, 5, 505)])

    assert covered(pulled) == list(range(5, 505))
    assert broker.in_flight_max == in_flight


def test_the_answers_of_several_ranges_are_each_in_order() -> None:
    broker = ScriptedBroker()

    pulled = pull_all(broker, [QueueRange(Q0, 0, 300), QueueRange(Q1, 40, 200)])

    assert covered(pulled, Q0) == list(range(300))
    assert covered(pulled, Q1) == list(range(40, 200))


def test_more_ranges_than_pulls_at_once_are_all_read() -> None:
    broker = ScriptedBroker()
    ranges = [QueueRange(Q0, start, start + 40) for start in range(0, 4_000, 40)]

    pulled = pull_all(broker, ranges)

    assert sorted(covered(pulled)) == list(range(4_000))
    assert broker.in_flight_max == OPTIONS.pull_max_in_flight


def test_slice_becomes_as_long_as_the_answers_of_the_broker() -> None:
    broker = ScriptedBroker(messages_max=32)

    pull_all(broker, [QueueRange(Q0, 0, 32_000)])

    assert len(broker.asked) < 1.1 * 1_000


def test_filtered_range_ends_at_an_offset_and_is_pulled_one_by_one() -> None:
    broker = ScriptedBroker(every=100)

    pulled = pull_all(broker, [QueueRange(Q0, 0, 9_950)], FILTERED)

    assert covered(pulled) == list(range(9_950))
    assert broker.in_flight_max == 1
    assert len(broker.asked) == 4  # 32 matching messages each


def test_deleted_offsets_are_lost_up_to_the_first_one_held() -> None:
    broker = ScriptedBroker(held=12, messages_max=100)

    first, *rest = pull_all(broker, [QueueRange(Q0, 5, 50)])

    assert (first.is_lost, first.answer.start, first.answer.until) == (True, 5, 12)
    assert not any(one.is_lost for one in rest)
    assert covered([first, *rest]) == list(range(5, 50))
    assert first.bounds == QueueBounds(0, 1_000_000)


def test_loss_that_only_a_slave_reports_is_no_loss() -> None:
    behind = answer_of(Q0, PullStatus.OFFSET_ILLEGAL, 3)
    broker = ScriptedBroker(answers=[behind])

    pulled = pull_all(broker, [QueueRange(Q0, 5, 9)])

    assert broker.masters_asked == 1
    assert [one.is_lost for one in pulled] == [False]
    assert covered(pulled) == [5, 6, 7, 8]


def test_queue_that_was_truncated_below_the_range_loses_all_of_it() -> None:
    gone = answer_of(Q0, PullStatus.OFFSET_ILLEGAL, 3)
    broker = ScriptedBroker(answers=[gone, gone])

    [pulled] = pull_all(broker, [QueueRange(Q0, 5, 9)])

    assert pulled.is_lost
    assert covered([pulled]) == [5, 6, 7, 8]


@pytest.mark.parametrize("status", [PullStatus.FOUND, PullStatus.NO_MATCHED_MSG])
def test_answer_without_progress_is_an_error(status: PullStatus) -> None:
    broker = ScriptedBroker(answers=[answer_of(Q0, status, 5)])

    with pytest.raises(ProtocolError, match="the next offset 5"):
        pull_all(broker, [QueueRange(Q0, 5, 9)])


def test_failed_pull_ends_the_read_with_its_error() -> None:
    broker = ScriptedBroker(answers=[RequestTimeoutError("no answer")])

    with pytest.raises(RequestTimeoutError, match="no answer"):
        pull_all(broker, [QueueRange(Q0, 0, 9), QueueRange(Q1, 0, 9)])


def test_rests_of_answers_are_pulled_again() -> None:
    async def main() -> list[Pulled]:
        puller = Puller(ScriptedBroker(), [QueueRange(Q0, 0, 10)], OPTIONS)
        await puller.next_portion(10, 1 << 20)
        puller.pull_again([QueueRange(Q0, 7, 10), QueueRange(Q1, 3, 3)])
        again = await puller.next_portion(10, 1 << 20)
        assert await puller.next_portion(10, 1 << 20) == []
        return again

    assert covered(run_virtual(main())) == [7, 8, 9]


def test_range_of_a_deleted_topic_ends_with_one_answer_that_names_the_refusal() -> None:
    refused = TopicNotFoundError(17, "topic flights was deleted and created again")
    broker = ScriptedBroker(
        answers=[answer_of(Q0, PullStatus.FOUND, 10, *range(10)), *[refused] * 9]
    )

    pulled = pull_all(broker, [QueueRange(Q0, 0, 9_000, topic_begin=700)])

    assert covered(pulled) == list(range(9_000))
    assert [(len(one.answer.raw) > 0, one.is_lost) for one in pulled] == [
        (True, False),
        (False, True),
    ]
    assert pulled[1].refusal == "code 17: topic flights was deleted and created again"
    assert broker.topic_begins == {700}


def test_other_ranges_are_read_on_after_one_whose_queue_is_gone() -> None:
    refused = InvalidParameterError(29, "queue 0 of topic flights does not exist")
    broker = ScriptedBroker(answers=[refused])

    pulled = pull_all(broker, [QueueRange(Q0, 0, 500), QueueRange(Q1, 0, 500)])

    assert covered(pulled, Q0) == covered(pulled, Q1) == list(range(500))
    assert [len(range(one.answer.start, one.answer.until)) for one in pulled if one.is_lost] == [
        500
    ]

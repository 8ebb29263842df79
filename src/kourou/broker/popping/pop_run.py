"""One pop in progress: the queues to read, what was found in each, and the answer.

Pure, except for the random choices, which are arguments.

Source: PopMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.popping.pop_reads import QueueRead
from kourou.broker.popping.pop_verdicts import PermittedPop
from kourou.broker.topic_attributes import has_priorities
from kourou.decimals import decimal_or
from kourou.model.topic import TopicConfig
from kourou.protocol.popping.headers import PopMessageRequestHeader
from kourou.remoting.connection import Request

_FACTOR_ATTRIBUTE: Final = "priority.factor"

PERCENT: Final = 100
"""Random choices of a pop are numbers below this, as in Java."""
_CACHED_TOPICS: Final = 64
"""Topics and groups whose steps are kept, a quarter of a kilobyte a queue."""


class PopQueue(NamedTuple):
    """A queue that one pop of a group reads at a time."""

    topic: str
    group: str
    queue_id: int


class PopStep(NamedTuple):
    """A queue to read.

    Attributes:
        is_retry: it is a queue of the retry topic.
        is_extra: it is left out if the answer is full before.
    """

    queue: PopQueue
    is_retry: bool = False
    is_extra: bool = False


class Popped(NamedTuple):
    """Messages that were found in one queue, which stays locked until they are checkpointed.

    Attributes:
        offset: the queue offset at which the read began.
    """

    queue: PopQueue
    offset: int
    read: QueueRead
    is_retry: bool


@dataclass(slots=True, eq=False)
class PopRun:
    """One pop in progress.

    Attributes:
        header: its fields, with a born time.
        steps: the queues to read, in order.
        revive_queue: queue of the checkpoints.
        at: the next step.
        popped: the messages found so far, by queue.
        starts: `start_text` of each of these reads.
        count: their number.
        rest: messages that are left in the queues.
        readable: queues that have messages beyond those that were examined, and are not locked.
        was_cold: a read waited for the disk; messages may have arrived meanwhile.
    """

    request: Request
    header: PopMessageRequestHeader
    permitted: PermittedPop
    steps: Sequence[PopStep]
    revive_queue: int
    at: int = 0
    popped: list[Popped] = field(default_factory=list)
    starts: set[str] = field(default_factory=set)
    count: int = 0
    rest: int = 0
    readable: list[PopQueue] = field(default_factory=list)
    was_cold: bool = False

    @property
    def room(self) -> int:
        """The number of messages that still fit into the answer."""
        return self.header.max_msg_nums - self.count

    def restart(self) -> None:
        """Read all queues again."""
        self.at = self.rest = 0
        self.was_cold = False
        self.readable.clear()


class RetryTopics(NamedTuple):
    """The retry topics of a group for a topic, as far as they exist.

    Attributes:
        current: the one that revived messages are stored in.
        older: that of the other version of the name, if it is read too.
    """

    current: TopicConfig | None
    older: TopicConfig | None


def pop_steps(
    header: PopMessageRequestHeader,
    permitted: PermittedPop,
    retry: RetryTopics,
    config: PopConfig,
    random: Random,
) -> list[PopStep]:
    """Return the queues to read, in order.

    One pop in five reads the retry topic first; others read it last, if there is room. Half of the
    pops read its older name, if it has two. An ordered pop never reads it. All queues of a topic
    are read from a random one on; those of a topic with priorities from the highest one on.
    """
    topic = permitted.topic
    number = start = random.randrange(PERCENT)
    first_percent = config.pop_from_retry_probability
    if _is_by_priority(header, permitted, random):
        start, first_percent = 0, config.pop_from_retry_probability_for_priority
    retry_topic = retry.current
    if config.enable_retry_topic_v2 and config.retrieve_message_from_pop_retry_topic_v1:
        retry_topic = retry.older if number % 2 == 0 else retry.current
    is_retry_first = number < first_percent
    group = header.consumer_group
    retries: list[PopStep] = []
    if retry_topic is not None and not header.order:
        found = _queues(retry_topic, group, start, config)
        retries = [PopStep(step.queue, True, not is_retry_first) for step in found]
    steps = [PopStep(PopQueue(topic.name, group, header.queue_id))]
    if header.queue_id < 0:
        steps = _queues(topic, group, start, config)
    return retries + steps if is_retry_first else steps + retries


def _is_by_priority(
    header: PopMessageRequestHeader, permitted: PermittedPop, random: Random
) -> bool:
    """Return whether the pop reads the queues in the order of their priorities."""
    if header.order or header.queue_id >= 0:
        return False
    if not has_priorities(permitted.topic):
        return False
    factor = permitted.group.attributes.get(_FACTOR_ATTRIBUTE, "")
    return random.randrange(PERCENT) < decimal_or(factor, PERCENT)


def queue_ids(topic: TopicConfig, start: int, config: PopConfig) -> list[int]:
    """Return all queue ids from `start` on."""
    count = topic.read_queue_nums
    at = start % count if count else 0
    ids = [*range(at, count), *range(at)]
    if config.priority_order_asc:
        ids.reverse()
    return ids


def _queues(topic: TopicConfig, group: str, start: int, config: PopConfig) -> list[PopStep]:
    """Return the steps of all queues from `start` on."""
    steps = _steps(topic.name, group, topic.read_queue_nums)
    return [steps[queue_id] for queue_id in queue_ids(topic, start, config)]


@lru_cache(_CACHED_TOPICS)
def _steps(topic: str, group: str, count: int) -> tuple[PopStep, ...]:
    """Return the steps of `count` queues. To create those of a thousand takes a millisecond."""
    return tuple(PopStep(PopQueue(topic, group, queue_id)) for queue_id in range(count))

"""Members of a popping group that are killed or ended: what they had comes back, or does not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kourou import Message
from kourou.blocking import AdminClient, Producer
from kourou.testing.process import Serving

pytestmark = pytest.mark.slow

INVISIBLE_MS = 4_000
MESSAGES = 12
TOPICS = ("killed", "ended", "given-back")

MEMBER = """
import sys, time
from kourou import ConsumeFromWhere, PushConsumerConfig
from kourou.blocking import PushConsumer

group, namesrv, invisible_ms, hangs = sys.argv[1:]
config = PushConsumerConfig(
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    pop_invisible_ms=int(invisible_ms),
    consume_threads=4,
    shutdown_timeout_ms=1_000,
)
consumer = PushConsumer(group, namesrv, mode="pop", config=config)
consumer.subscribe(group)

@consumer.listen
def take(message):
    sys.stdout.write(f"{message.body.decode()} {message.reconsume_times}\\n")
    sys.stdout.flush()
    if hangs == "hangs":
        time.sleep(3600)

with consumer:
    consumer.run_forever()
"""


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("serve") / "store") as serving:
        with AdminClient(serving.namesrv) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=2)
        with Producer("p", serving.namesrv) as producer:
            for topic, number in itertools.product(TOPICS, range(MESSAGES)):
                producer.send(Message(topic, b"%d" % number))
        yield serving.namesrv


@contextmanager
def member(group: str, namesrv: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """Run a member, which prints each message and its number of redeliveries."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, group, namesrv, str(INVISIBLE_MS), how],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[tuple[int, int]]:
    """Return number and redeliveries of the next messages."""
    assert process.stdout is not None
    found = [process.stdout.readline().split() for _ in range(count)]
    return [(int(number), int(times)) for number, times in found]


def stays(process: subprocess.Popen[str], seconds: float) -> None:
    """Let the process run for `seconds`."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)


def test_messages_of_a_killed_member_come_back_after_the_invisible_time(namesrv: str) -> None:
    with member("killed", namesrv, "hangs") as victim:
        begun = lines(victim, 4)
        stays(victim, INVISIBLE_MS / 1000)  # messages are renewed, those that wait too
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    with member("killed", namesrv, "works") as survivor:
        came = lines(survivor, MESSAGES)
    assert sorted(number for number, _ in came) == list(range(MESSAGES))
    assert {times for number, times in came if (number, 0) in begun} == {1}


def test_ended_member_has_acknowledged_what_it_handled(namesrv: str) -> None:
    with member("ended", namesrv, "works") as process:
        assert sorted(lines(process, MESSAGES)) == [(number, 0) for number in range(MESSAGES)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with Producer("p", namesrv) as producer:
        producer.send(Message("ended", b"99"))
    with member("ended", namesrv, "works") as other:
        stays(other, 2 * INVISIBLE_MS / 1000)
        assert lines(other, 1) == [(99, 0)]


def test_ended_member_gives_back_at_once_what_it_has_not_begun(namesrv: str) -> None:
    with member("given-back", namesrv, "hangs") as process:
        lines(process, 4)
        process.send_signal(signal.SIGTERM)  # its threads hang, but it has left the group
        with member("given-back", namesrv, "works") as other:
            came = lines(other, MESSAGES)
    counts = [times for _, times in came]
    assert counts.count(1) == 4, "only what a listener has begun counts as delivered"

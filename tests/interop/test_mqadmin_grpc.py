"""Tests of the official `mqadmin` 5.5.0, and of `kourou`, on groups of 5.x clients.

The members are the official Java push consumer, which answers commands by Telemetry, and the
official Python simple consumer, which does not. They use `kourou serve`, and `kourou serve proxy`
before Kourou and before the Java broker.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kourou import Message, SendReceipt
from kourou.blocking import Producer
from kourou.testing.process import Serving, run_command
from tests.interop.clients import grpc_member_command
from tests.interop.mqadmin import Mqadmin, Printed
from tests.interop.peer import JavaServer
from tests.interop.test_grpc_clients import Served, broker

TOPIC, PUSHERS, SIMPLE = "Orders", "pushers", "simple"
SECONDS = 60

SIMPLE_MEMBER = """
import sys
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

endpoints, group, topic = sys.argv[1:]
consumer = SimpleConsumer(
    ClientConfiguration(endpoints, Credentials()), group, {topic: FilterExpression("*")},
    await_duration=5,
)
consumer.startup()
print("id", consumer.client_id, flush=True)
for line in sys.stdin:
    for message in consumer.receive(32, 30) or ():
        consumer.ack(message)
        print("received", message.body.decode(), flush=True)
    print("done", flush=True)
consumer.shutdown()
"""
"""A simple consumer that receives once for each line of its input, and acknowledges."""


class Member:
    """A running consumer; its lines are read as they come.

    Attributes:
        client_id: empty until the consumer has started.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self.client_id = ""

    def next(self, kind: str) -> str:
        """Wait for a line of a kind; return the rest of it."""
        word, *rest = self._lines.get(timeout=SECONDS)
        assert word == kind, (word, rest)
        return " ".join(rest)

    def received(self, count: int) -> list[str]:
        """Wait for messages; return their bodies, sorted."""
        return sorted(self.next("received") for _ in range(count))

    def receive(self) -> list[str]:
        """Let a simple consumer receive once; return the bodies, sorted."""
        assert self._process.stdin is not None
        self._process.stdin.write("receive\n")
        self._process.stdin.flush()
        found: list[str] = []
        while (line := self._lines.get(timeout=SECONDS)) != ["done"]:
            found.append(line[1])
        return sorted(found)

    def stop(self) -> None:
        """End its input, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._reading.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.split())
        self._lines.put(["ended"])


@contextmanager
def running(command: Sequence[str], home: Path) -> Iterator[Member]:
    """Run a consumer, which logs below the home directory."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    member = Member(process)
    try:
        member.client_id = member.next("id")
        yield member
    finally:
        member.stop()


@dataclass(frozen=True)
class Groups:
    """Two groups with a live member each.

    Attributes:
        namesrv: the name server.
        home: working directory of `mqadmin`.
        mqadmin: the tool.
        push, simple: the members.
    """

    namesrv: str
    home: Path
    mqadmin: Mqadmin
    push: Member
    simple: Member

    def run(self, command: str) -> Printed:
        """Run a command of `mqadmin`."""
        return self.mqadmin.run(*command.split())

    def out(self, command: str) -> str:
        """Run a command that must not fail; return what it prints, without blanks in rows."""
        printed = self.run(command)
        assert not printed.is_failure, printed
        return re.sub(" +", " ", printed.out)

    def send(self, *bodies: str) -> list[SendReceipt]:
        """Send messages one after the other."""
        with Producer("senders", self.namesrv) as producer:
            return [producer.send(Message(TOPIC, one.encode(), tags="a")) for one in bodies]

    def exchange(self, *bodies: str) -> list[SendReceipt]:
        """Send messages that both members receive."""
        sent = self.send(*bodies)
        assert self.push.received(len(bodies)) == sorted(bodies)
        assert self.simple.receive() == sorted(bodies)
        return sent


@pytest.fixture(scope="module", params=["local", "cluster", "java"])
def serving(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Return Kourou's broker with its gRPC port, or a proxy before Kourou's or Java's broker."""
    directory = tmp_path_factory.mktemp("grpc")
    with broker(request.param, jars, directory) as server:
        namesrv = server.namesrv_addr if isinstance(server, JavaServer) else server.namesrv
        for words in (("topic", "create", TOPIC, "--queues", "1"), *_groups()):
            assert run_command(*words, "--namesrv", namesrv).code == 0
        if isinstance(server, Serving) and request.param == "local":
            yield Served(namesrv, server.grpc)
            return
        with Serving.start_proxy(namesrv, directory / "home") as proxy:
            yield Served(namesrv, proxy.grpc)


def _groups() -> list[tuple[str, ...]]:
    return [("group", "create", group) for group in (PUSHERS, SIMPLE)]


@pytest.fixture(scope="module")
def groups(serving: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    home = tmp_path_factory.mktemp("members")
    push = (*grpc_member_command(), serving.grpc, PUSHERS, TOPIC, "a || b")
    simple = (sys.executable, "-c", SIMPLE_MEMBER, serving.grpc, SIMPLE, TOPIC)
    with (
        Mqadmin(serving.namesrv, home) as mqadmin,
        running(push, home) as push_member,
        running(simple, home) as simple_member,
    ):
        assert simple_member.receive() == []  # the group begins at the end of the queue
        yield Groups(serving.namesrv, home, mqadmin, push_member, simple_member)


def test_connections_have_language_and_version(groups: Groups) -> None:
    shown = groups.out(f"consumerConnection -g {PUSHERS}")
    assert re.search(rf"{groups.push.client_id} 127\.0\.0\.1:\d+ JAVA V5_2_0\n", shown)
    assert f"{TOPIC} a || b\n" in shown
    assert "ConsumeType: CONSUME_PASSIVELY\nMessageModel: CLUSTERING\n" in shown

    shown = groups.out(f"consumerConnection -g {SIMPLE}")
    assert re.search(rf"{groups.simple.client_id} 127\.0\.0\.1:\d+ PYTHON V5_1_\d\n", shown)
    assert f"{TOPIC} *\n" in shown
    assert "ConsumeType: CONSUME_ACTIVELY\nMessageModel: CLUSTERING\n" in shown


def test_kourou_describes_members_with_language_and_version(groups: Groups) -> None:
    for group, member, language in (
        (PUSHERS, groups.push, "JAVA V5_2"),
        (SIMPLE, groups.simple, "PYTHON V5_1"),
    ):
        shown = run_command("group", "describe", group, "--namesrv", groups.namesrv)
        row = re.sub(" +", " ", shown.out.splitlines()[1])
        assert re.match(rf"{member.client_id} 127\.0\.0\.1:\d+ {language}", row)


def test_progress_shows_what_is_not_consumed(groups: Groups) -> None:
    groups.exchange("progress-1")
    groups.send("progress-2", "progress-3")
    assert groups.push.received(2) == ["progress-2", "progress-3"]

    behind = groups.out(f"consumerProgress -g {SIMPLE} -t {TOPIC}")
    assert groups.simple.receive() == ["progress-2", "progress-3"]

    assert "Consume Diff Total: 2\n" in behind
    for group in (PUSHERS, SIMPLE):
        progress = groups.out(f"consumerProgress -g {group} -t {TOPIC}")
        assert "Consume Diff Total: 0\nConsume Inflight Total: 0\n" in progress
    every = groups.out("consumerProgress")
    assert re.search(rf"^{PUSHERS} 1 V5_2_0 PUSH CLUSTERING ", every, flags=re.MULTILINE)
    assert re.search(rf"^{SIMPLE} 1 V5_1_\d PULL ", every, flags=re.MULTILINE)


@pytest.mark.parametrize("name", [PUSHERS, SIMPLE])
def test_status_has_the_settings_of_a_member(name: str, groups: Groups) -> None:
    member = groups.push if name == PUSHERS else groups.simple
    every = groups.out(f"consumerStatus -g {name}")
    status = groups.out(f"consumerStatus -g {name} -i {member.client_id}")

    assert "Same subscription in the same group of consumer\n\nRebalance OK\n" in every
    [path] = re.findall(rf" V5_\d_\d (\d+/{member.client_id})\n", every)
    assert re.sub(" +", " ", (groups.home / path).read_text()) == status
    kind, text = ("PASSIVELY", "a || b") if name == PUSHERS else ("ACTIVELY", r"\*")
    assert f"PROP_CONSUME_TYPE : CONSUME_{kind}\n" in status
    assert re.search(r"PROP_CLIENT_VERSION : 5\.\d\.\d\n", status)
    assert re.search(rf"001 Topic: {TOPIC} ClassFilter: false SubExpression: {text}\n", status)
    assert "jstack" not in status


def test_status_has_the_stacks_of_a_member_that_answers(groups: Groups) -> None:
    every = groups.out(f"consumerStatus -g {PUSHERS} -s true")
    status = groups.out(f"consumerStatus -g {PUSHERS} -i {groups.push.client_id} -s true")

    [path] = re.findall(rf" (\d+/{groups.push.client_id})\n", every)
    for text in (status, (groups.home / path).read_text()):
        _, _, stacks = text.partition("#Consumer jstack#\n")
        assert re.match(r"\S.* TID: \d+ STATE: [A-Z_]+\n", stacks)
        assert "RocketmqClientAsyncWorker" in stacks


def test_member_that_does_not_answer_fails_the_command(groups: Groups) -> None:
    asked = groups.run(f"consumerStatus -g {SIMPLE} -i {groups.simple.client_id} -s true")
    shown = run_command("group", "running-info", SIMPLE, "--stack", "--namesrv", groups.namesrv)

    assert asked.is_failure  # the tool waits for 5 s, as the proxy does
    assert shown.code == 1
    assert "did not answer a command within 5 s" in shown.err


def test_message_is_consumed_directly(groups: Groups) -> None:
    [good] = groups.exchange("direct")
    for command in (
        f"queryMsgById -i {good.offset_msg_id}",
        f"queryMsgByUniqueKey -i {good.msg_id}",
    ):
        shown = groups.out(f"{command} -t {TOPIC} -g {PUSHERS} -d {groups.push.client_id}")
        assert "consumeResult=CR_SUCCESS, remark=null" in shown
        assert groups.push.received(1) == ["direct"]
        shown = groups.out(f"{command} -t {TOPIC} -g {SIMPLE} -d {groups.simple.client_id}")
        assert f"this {groups.simple.client_id} client is not push consumer" in shown

    tracks = groups.out(f"queryMsgById -t {TOPIC} -i {good.offset_msg_id}")
    assert f"[consumerGroup={PUSHERS}, trackType=CONSUMED, " in tracks
    assert f"[consumerGroup={SIMPLE}, trackType=PULL, " in tracks


def test_failure_to_consume_directly_is_shown(groups: Groups) -> None:
    [bad] = groups.exchange("fail")

    shown = groups.out(
        f"queryMsgById -t {TOPIC} -i {bad.offset_msg_id} -g {PUSHERS} -d {groups.push.client_id}"
    )

    assert "consumeResult=CR_LATER" in shown
    assert groups.push.received(1) == ["fail"]


def test_members_receive_again_from_a_reset_on(groups: Groups) -> None:
    groups.exchange("reset-1")
    second = groups.exchange("reset-2", "reset-3")[0]
    with_time = groups.out(f"queryMsgById -t {TOPIC} -i {second.offset_msg_id}")
    [stored] = re.findall(r"Store Timestamp: (\S+) (\S+),(\d+)\n", with_time)
    at = "{}#{}:{}".format(*stored)

    for group in (PUSHERS, SIMPLE):
        shown = groups.out(f"resetOffsetByTime -g {group} -t {TOPIC} -s {at}")
        assert f"broker-a 0 {second.queue_offset} \n" in shown

    assert groups.push.received(2) == ["reset-2", "reset-3"]
    assert groups.simple.receive() == ["reset-2", "reset-3"]


def test_member_receives_nothing_that_was_skipped(groups: Groups) -> None:
    groups.send("skip-1", "skip-2")
    assert groups.push.received(2) == ["skip-1", "skip-2"]
    before = groups.out(f"consumerProgress -g {SIMPLE} -t {TOPIC}")

    shown = groups.out(f"skipAccumulatedMessage -g {SIMPLE} -t {TOPIC}")
    after = groups.out(f"consumerProgress -g {SIMPLE} -t {TOPIC}")

    assert "Consume Diff Total: 2\n" in before
    assert re.search(r"broker-a 0 \d+ \n", shown)
    assert "Consume Diff Total: 0\n" in after
    groups.exchange("kept")

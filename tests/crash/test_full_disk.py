"""On a full disk a broker refuses sends with the needed space, serves reads, and loses nothing.

The tests run on a small mounted file system, or on a simulated full disk if mounting is not
permitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import ServiceNotAvailableError
from kourou.model.message import Message
from kourou.testing.process import Outcome, Serving, run_command
from tests.crash.conftest import assert_in_order

PROGRAM = Path(__file__).with_name("fillable_disk.py")
KIB = 1024
TOPIC = "orders"
PATIENT = ProducerConfig(send_timeout_ms=60_000)
AT_ONCE = replace(PATIENT, retry_response_codes=frozenset())
"""Fails at the first refusal, without a retry."""
SETTINGS = "freeBytesMin=1\nmappedFileSizeCommitLog=1 MiB\nmaxMessageSize=64 KiB\n"

pytestmark = pytest.mark.slow


class SmallDisk:
    """A directory for one store, on a disk that can be filled.

    Attributes:
        store: the store's directory.
        command: the command that runs `kourou` there.
    """

    command: tuple[str, ...] = (sys.executable, str(PROGRAM))

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        (root.parent / "broker.conf").write_text(SETTINGS)

    def fill(self, *, but_for: int = 0) -> None:
        """Fill the disk, except for `but_for` bytes where that is possible."""
        (self.root / "full").touch()

    def empty(self) -> None:
        (self.root / "full").unlink()

    def start(self) -> Serving:
        """Return the serving process; if it cannot start, raise an error with its output."""
        process = self._start()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=60)
            raise AssertionError(f"exit code {process.returncode}: {err}")
        return Serving(process, json.loads(line))

    def _start(self) -> subprocess.Popen[str]:
        ports = ("--port", "0", "--namesrv-port", "0", "--console-port", "0")
        options = (*ports, "--log-level", "error", "--ready-json")
        config = str(self.root.parent / "broker.conf")
        return subprocess.Popen(
            [*self.command, "serve", "--store", str(self.store), "--config", config, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class MountedDisk(SmallDisk):
    """A file system of 64 MiB, filled by one large file."""

    command = (sys.executable, "-m", "kourou.cli.main")

    def fill(self, *, but_for: int = 0) -> None:
        with contextlib.suppress(OSError), (self.root / "ballast").open("wb", 0) as ballast:
            while ballast.write(bytes(4 * KIB)):
                pass
            ballast.truncate(max(0, ballast.tell() - but_for))

    def empty(self) -> None:
        (self.root / "ballast").unlink()


def mounted(path: Path) -> bool:
    """Mount a small file system at `path`; return whether that was allowed."""
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def may_mount(path: Path) -> bool:
    """Tell whether this user may mount a file system, by mounting and unmounting one."""
    if os.geteuid() != 0 or not mounted(path):
        return False
    subprocess.run(["umount", str(path)], check=True)
    return True


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A mounted file system, or a simulated full disk for a user who may not mount one."""
    root = tmp_path / "disk"
    root.mkdir()
    if may_mount(root):
        assert mounted(root)
        try:
            yield MountedDisk(root)
        finally:
            subprocess.run(["umount", "--lazy", str(root)], check=True)
    else:
        yield SmallDisk(root)


Places = dict[str, tuple[int, int]]
"""The queue id and queue offset of each message, by its key."""


def send(
    serving: Serving,
    numbers: range,
    places: Places,
    *,
    config: ProducerConfig = PATIENT,
    size_bytes: int = KIB,
) -> None:
    """Send numbered messages and record the acknowledged ones in `places`."""

    async def main() -> None:
        async with Producer("writers", serving.namesrv, config=config) as producer:
            for number in numbers:
                key = f"key-{number}"
                body = key.encode() + os.urandom(
                    size_bytes
                )  # random, so that it is not compressible
                message = Message(TOPIC, body, keys=[key])
                receipt = await producer.send(message)
                places[key] = (receipt.queue.queue_id, receipt.queue_offset)

    asyncio.run(main())


def stored(serving: Serving) -> Places:
    """Return queue and offset of each message, by pulling all."""

    async def main() -> Places:
        places: Places = {}
        async with PullConsumer("readers", serving.namesrv) as reader:
            for queue in await reader.fetch_subscribe_message_queues(TOPIC):
                at, end = 0, await reader.max_offset(queue)
                while at < end:
                    result = await reader.pull(queue, at)
                    assert result.next_offset > at, f"stuck at {at} of {queue}"
                    for message in result.messages:
                        places[message.keys[0]] = (queue.queue_id, message.queue_offset)
                    at = result.next_offset
        return places

    return asyncio.run(main())


def refused(serving: Serving, places: Places) -> str:
    """Send until refused, and return the reason; zeros ahead of the log still hold a few sends."""
    with pytest.raises(ServiceNotAvailableError) as refusal:
        send(serving, range(1000, 1050), places, config=AT_ONCE, size_bytes=32 * KIB)
    return refusal.value.remark


def test_sends_are_refused_until_there_is_space_and_reads_still_work(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(50), acknowledged)
        disk.fill()
        reason = refused(serving, acknowledged)
        assert str(disk.store) in reason
        assert "bytes free, writes need 1" in reason
        assert "make room, or move the store; reads still work" in reason
        assert stored(serving) == acknowledged

        disk.empty()
        send(serving, range(50, 100), acknowledged)
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def send_until_refused(serving: Serving, places: Places) -> str:
    """Send messages of 60 KiB until the disk is full, and return the reason of the refusal."""

    async def main() -> str:
        async with Producer("writers", serving.namesrv, config=AT_ONCE) as producer:
            for number in range(2_000, 4_000):
                key = f"key-{number}"
                message = Message(TOPIC, bytes(60 * KIB), keys=[key])
                try:
                    receipt = await producer.send(message)
                except ServiceNotAvailableError as error:
                    return error.remark
                places[key] = (receipt.queue.queue_id, receipt.queue_offset)
        raise AssertionError("the disk never became full")

    return asyncio.run(main())


def readiness(serving: Serving) -> tuple[int, str]:
    """Return the status and text of /readyz."""
    address = str(serving.ready["console"]).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until_ready(serving: Serving) -> None:
    """Wait until messages are accepted again; tests in virtual time verify how soon."""
    gives_up_at_s = time.perf_counter() + 60
    while readiness(serving)[0] != 200:
        assert time.perf_counter() < gives_up_at_s, readiness(serving)


def test_health_reports_a_disk_filled_by_messages_and_the_broker_resumes(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(10), acknowledged)
        assert readiness(serving)[0] == 200
        disk.fill(but_for=8 * KIB * KIB)
        reason = send_until_refused(serving, acknowledged)
        assert f"{disk.store} has " in reason
        assert "bytes free, writes need 1" in reason
        code, text = readiness(serving)
        assert code == 503
        assert str(disk.store) in text
        health = run_command("health", "-n", serving.namesrv)
        assert health.code == 1
        assert "refuses sends" in health.out
        assert stored(serving) == acknowledged

        disk.empty()
        until_ready(serving)
        send(serving, range(50, 60), acknowledged)
        assert run_command("health", "-n", serving.namesrv).code == 0
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


@pytest.mark.parametrize(
    ("sign", "reason"), [("unsynced", "a sync failed"), ("unwritten", "a write failed")]
)
def test_a_failing_disk_makes_the_broker_read_only_until_it_is_restarted(
    sign: str, reason: str, tmp_path: Path
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = SmallDisk(root)
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(20), acknowledged)
        (root / sign).touch()
        with pytest.raises(ServiceNotAvailableError, match=reason):
            send(serving, range(100, 101), {}, config=AT_ONCE)
        code, text = readiness(serving)
        assert code == 503
        assert f"{disk.store} is read-only: {reason}" in text
        assert "repair the disk and start again; reads still work" in text

        (root / sign).unlink()
        good_since_s = time.perf_counter()
        while time.perf_counter() - good_since_s < 1.2:  # longer than a round of flushes and syncs
            assert reason in refused(serving, {})
        assert run_command("health", "-n", serving.namesrv).code == 1
        assert acknowledged.items() <= stored(serving).items()
        serving.stop()

    with disk.start() as serving:
        assert readiness(serving)[0] == 200
        assert acknowledged.items() <= stored(serving).items()
        send(serving, range(200, 210), acknowledged)
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def test_a_kill_on_a_full_disk_loses_nothing(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(50), acknowledged)
        disk.fill()
        refused(serving, acknowledged)
        serving.stop(signal.SIGKILL)

    disk.empty()
    with disk.start() as serving:
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def test_a_stop_on_a_full_disk_loses_nothing(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(50), acknowledged)
        disk.fill()
        refused(serving, acknowledged)
        serving.stop()

    disk.empty()
    with disk.start() as serving:
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def test_a_start_on_a_full_disk_is_reported_and_harmless(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(50), acknowledged)
        serving.stop(signal.SIGKILL)

    disk.fill()
    with pytest.raises(AssertionError) as refusal:
        disk.start()
    assert "exit code 3" in str(refusal.value)
    assert f"{disk.store}: No space left on device" in str(refusal.value)
    assert "Traceback" not in str(refusal.value)

    disk.empty()
    with disk.start() as serving:
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def test_a_topic_that_cannot_be_saved_is_refused_and_the_others_stay(disk: SmallDisk) -> None:
    def create(serving: Serving) -> Outcome:
        return run_command("topic", "create", "late", "-n", serving.namesrv)

    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(10), acknowledged)
        disk.fill()
        outcome = create(serving)
        assert outcome.code == 1
        assert "cannot be saved" in outcome.err
        assert "No space left on device" in outcome.err

        disk.empty()
        assert create(serving).code == 0
        serving.stop(signal.SIGKILL)

    with disk.start() as serving:
        assert stored(serving) == acknowledged
        listed = run_command("topic", "list", "--json", "-n", serving.namesrv)
        assert {"late", TOPIC} <= {row["topic"] for row in json.loads(listed.out)}


def test_the_minimum_free_space_is_kept(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("freeBytesMin=1\n")
    with Serving.start(tmp_path / "store", "--config", str(conf)) as serving:
        acknowledged: Places = {}
        send(serving, range(5), acknowledged)
        serving.stop()

    conf.write_text(f"freeBytesMin={1024**6}\n")
    with Serving.start(tmp_path / "store", "--config", str(conf)) as serving:
        assert f"bytes free, writes need {1024**6}" in refused(serving, acknowledged)
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(tmp_path / "store")

"""A full disk refuses what needs room and says how much, serves reads, and loses nothing.

On a real small file system where one may be mounted, and on a disk that says it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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
SETTINGS = "freeBytesMin=1\nmappedFileSizeCommitLog=1 MiB\nmaxMessageSize=64 KiB\n"

pytestmark = pytest.mark.slow


class SmallDisk:
    """A directory for one store, on a disk that can be filled.

    Attributes:
        store: where the store goes.
        command: what runs `kourou` there.
    """

    command: tuple[str, ...] = (sys.executable, str(PROGRAM))

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        (root.parent / "broker.conf").write_text(SETTINGS)

    def fill(self) -> None:
        (self.root / "full").touch()

    def empty(self) -> None:
        (self.root / "full").unlink()

    def start(self) -> Serving:
        """Return the serving process; what it says when it cannot start is the error's text."""
        process = self._start()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=10)
            raise AssertionError(f"exit code {process.returncode}: {err}")
        return Serving(process, json.loads(line))

    def _start(self) -> subprocess.Popen[str]:
        options = ("--port", "0", "--namesrv-port", "0", "--log-level", "error", "--ready-json")
        config = str(self.root.parent / "broker.conf")
        return subprocess.Popen(
            [*self.command, "serve", "--store", str(self.store), "--config", config, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class MountedDisk(SmallDisk):
    """A file system of 8 MiB, filled by a file that takes all of it."""

    command = (sys.executable, "-m", "kourou.cli.main")

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.root / "ballast").open("wb", 0) as ballast:
            while ballast.write(bytes(4 * KIB)):
                pass

    def empty(self) -> None:
        (self.root / "ballast").unlink()


def mounted(path: Path) -> bool:
    """Mount a small file system at `path`; return whether that was allowed."""
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def may_mount(path: Path) -> bool:
    """Return whether this user may mount one; asked once, and undone."""
    if os.geteuid() != 0 or not mounted(path):
        return False
    subprocess.run(["umount", str(path)], check=True)
    return True


@pytest.fixture(params=["told to be full", "full"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    root = tmp_path / "disk"
    root.mkdir()
    if request.param == "full" and may_mount(root):
        assert mounted(root)
        try:
            yield MountedDisk(root)
        finally:
            subprocess.run(["umount", "--lazy", str(root)], check=True)
    else:
        yield SmallDisk(root)


Places = dict[str, tuple[int, int]]
"""The queue and the offset of each message, by its key."""


def send(serving: Serving, numbers: range, places: Places, *, timeout_ms: int = 5_000) -> None:
    """Send numbered messages of 1 KiB and note in `places` where those acknowledged are."""

    async def main() -> None:
        config = ProducerConfig(send_timeout_ms=timeout_ms)
        async with Producer("writers", serving.namesrv, config=config) as producer:
            for number in numbers:
                key = f"key-{number}"
                message = Message(TOPIC, key.encode().ljust(KIB, b"."), keys=[key])
                receipt = await producer.send(message)
                places[key] = (receipt.queue.queue_id, receipt.queue_offset)

    asyncio.run(main())


def stored(serving: Serving) -> Places:
    """Return the place of each message, by pulling all."""

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
    """Send until that is refused, and return why; a block that is begun takes a few more."""
    with pytest.raises(ServiceNotAvailableError) as refusal:
        send(serving, range(1000, 1010), places, timeout_ms=300)
    return refusal.value.remark


def test_sends_are_refused_until_there_is_room_and_reads_go_on(disk: SmallDisk) -> None:
    with disk.start() as serving:
        acknowledged: Places = {}
        send(serving, range(50), acknowledged)
        disk.fill()
        reason = refused(serving, acknowledged)
        assert str(disk.store) in reason
        assert "bytes free, writes need 1" in reason
        assert "make room, or move the store; reads go on" in reason
        assert stored(serving) == acknowledged

        disk.empty()
        send(serving, range(50, 100), acknowledged)
        assert stored(serving) == acknowledged
        assert serving.stop().code == 0
    assert_in_order(disk.store)


def test_a_kill_while_it_is_full_loses_nothing(disk: SmallDisk) -> None:
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


def test_a_stop_while_it_is_full_loses_nothing(disk: SmallDisk) -> None:
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


def test_a_start_on_a_full_disk_says_so_and_harms_nothing(disk: SmallDisk) -> None:
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


def test_the_reserve_is_kept_free(tmp_path: Path) -> None:
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

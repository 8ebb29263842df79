"""A 64 MB file system of a real broker is filled and emptied, without a restart.

While it is full, reads work and sends are refused with the free bytes and the path; sends are
accepted within 5 s after space is freed. If mounting is not permitted, the test runs in its own
user namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kourou.model.message import MessageExt
from kourou.protocol.codes import ResponseCode
from tests.torture.broker_connection import BrokerConnection
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.real_broker import RealBroker, troubles

FAULT: Final = "full disk of 64 MB"
LOST: Final = "acknowledged messages not read, while full or later"
UNSAID: Final = "refusals without bytes and path"
UNHEALTHY: Final = "full disk not reported by health"
DAMAGE: Final = "findings of store check"
RESTARTS: Final = "restarts"
RESUME_WITHIN_S: Final = 5.0
ROUNDS: Final = 3
SIZE: Final = "64m"
BODY_BYTES: Final = 8 * 1024
QUEUES: Final = 3
FIRST_BYTES: Final = 40 * 1024 * 1024

Ledger = dict[tuple[int, int], bytes]


def mount(directory: Path) -> bool:
    """Mount a small file system; return whether that was permitted."""
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


async def _send_until_refused(connection: BrokerConnection, ledger: Ledger) -> str:
    """Send until a message is refused; return the reason."""
    number = 0
    while True:
        body = b"%d-%d-" % (len(ledger), number) + bytes(BODY_BYTES)
        answer = await connection.send("T", number % QUEUES, body)
        if answer.code != ResponseCode.SUCCESS:
            return str(answer.remark)
        place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
        ledger[place] = body
        number += 1


async def _missing(connection: BrokerConnection, ledger: Ledger) -> list[str]:
    messages: dict[tuple[int, int], MessageExt] = {}
    for queue_id in range(QUEUES):
        held = await connection.read("T", queue_id)
        messages.update({(queue_id, offset): each for offset, each in held.messages.items()})
    return [
        f"{queue} at {offset}"
        for (queue, offset), body in ledger.items()
        if (queue, offset) not in messages or messages[queue, offset].body != body
    ]


async def _resumed_after_s(connection: BrokerConnection, ledger: Ledger) -> float:
    """Return the time until a send is accepted again."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while loop.time() < began_s + 4 * RESUME_WITHIN_S:
        body = b"again-%d-" % len(ledger)
        answer = await connection.send("T", 0, body)
        if answer.code == ResponseCode.SUCCESS:
            ledger[0, int(answer.ext_fields["queueOffset"])] = body
            return loop.time() - began_s
        await asyncio.sleep(0.02)
    return loop.time() - began_s


def _fill(ballast: Path, size: int | None) -> None:
    """Fill `size` bytes of the device, or all that are left."""
    with contextlib.suppress(OSError), ballast.open("ab", 0) as file:
        while size is None or file.tell() < size:
            file.write(bytes(4096))


async def _fill_and_empty(broker: RealBroker, ballast: Path) -> tuple[Outcome, float]:
    outcome, ledger, slowest_s = Outcome(), Ledger(), 0.0
    pid = broker.serving.process.pid
    async with BrokerConnection(broker.serving.broker) as connection:
        for number in range(ROUNDS):
            # In the first round, the log uses the rest.
            await asyncio.to_thread(_fill, ballast, FIRST_BYTES if not number else None)
            remark = await _send_until_refused(connection, ledger)
            outcome.counts["rounds"] += 1
            if str(broker.store) not in remark or "bytes free" not in remark:
                outcome.failures.append((UNSAID, remark))
            if not await troubles(str(broker.serving.ready["console"])):
                outcome.failures.append((UNHEALTHY, f"round {number}"))
            missing = await _missing(connection, ledger)
            outcome.failures += [(LOST, f"round {number}, full: {text}") for text in missing]
            await asyncio.to_thread(ballast.unlink)
            slowest_s = max(slowest_s, await _resumed_after_s(connection, ledger))
            missing = await _missing(connection, ledger)
            outcome.failures += [(LOST, f"round {number}, emptied: {text}") for text in missing]
    outcome.counts["acknowledged messages"] = len(ledger)
    if broker.serving.process.poll() is not None or broker.serving.process.pid != pid:
        outcome.failures.append((RESTARTS, "the process ended"))
    await asyncio.to_thread(broker.stop)
    outcome.failures += [(DAMAGE, text) for text in broker.findings()]
    return outcome, slowest_s


def fill_and_empty(directory: Path) -> list[Figure]:
    """Return the figures of a broker on the small file system mounted at `directory`."""
    broker = RealBroker(directory)
    try:
        outcome, slowest_s = asyncio.run(_fill_and_empty(broker, directory / "ballast"))
    finally:
        broker.end()
    names = (LOST, UNSAID, UNHEALTHY, RESTARTS, DAMAGE)
    return [
        *(counted(FAULT, name, outcome, "rounds") for name in names),
        Figure(FAULT, "sends accepted again after", f"{slowest_s:.2f} s", "5 s",
               held=slowest_s <= RESUME_WITHIN_S),
    ]  # fmt: skip


def run(_: Size) -> list[Figure]:
    """Return the figures; mount in a separate namespace if necessary."""
    with tempfile.TemporaryDirectory() as made:
        if mount(Path(made)):
            try:
                return fill_and_empty(Path(made))
            finally:
                subprocess.run(["umount", "--lazy", made], check=True)
        command = ["unshare", "-rm", sys.executable, "-m", "tests.torture.small_disk", made]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            done = subprocess.CompletedProcess(command, 1, "", "no unshare")
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        return [Figure(FAULT, f"not measured, may not mount: {why}", "-", "-", held=True)]
    return [Figure(**{**each, "failures": tuple(each["failures"])})
            for each in json.loads(done.stdout)]  # fmt: skip


def main() -> None:
    """Mount at the directory in `sys.argv`, in a namespace that permits it, and run there."""
    directory = Path(sys.argv[1])
    if not mount(directory):
        sys.exit("no permission to mount")
    sys.stdout.write(json.dumps([asdict(figure) for figure in fill_and_empty(directory)]))


if __name__ == "__main__":
    main()

"""Measures rate and broker CPU of transactions (half message and commit).

    python -m bench.transactions [--peers kourou,java] [--rounds 3] [--seconds 3] [--warm 10]
        [--flush async|sync] [--answered]

The client sends half messages of 1 KB on several connections, with several in flight on each, and
commits each one when it is stored: one-way, as Java's client does, or with `--answered` with an
answer, as Kourou's client does. A transaction counts when its half message is acknowledged. CPU
time is that of the server. Each server is loaded for `--warm` seconds before, which a Java broker
needs for the compilation of its code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench import java_server
from bench.servers import Flush, Server, start_kourou

CONNECTIONS: Final = 8
WINDOW: Final = 16
BODY: Final = b"x" * 1024
TOPIC: Final = "bench-transactions"
GOAL: Final = 3
"""Goal: ratio of the Java broker's CPU time per transaction to Kourou's."""
_PREFIX: Final = struct.Struct(">ii")


def _frame(header: dict[str, object], body: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _PREFIX.pack(4 + len(text) + len(body), len(text)) + text + body


def _half(opaque: int, unique: str, queue_id: int) -> bytes:
    fields = {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "4",
        "g": str(int(time.time() * 1000)), "h": "0",
        "i": f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02PGROUP\x01bench\x02",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return _frame(
        {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
         "serializeTypeCurrentRPC": "JSON", "version": 513},
        BODY,
    )  # fmt: skip


def _commit(opaque: int, answer: dict[str, str], unique: str, *, is_answered: bool) -> bytes:
    fields = {
        "producerGroup": "bench", "tranStateTableOffset": answer["queueOffset"],
        "commitLogOffset": str(int(answer["msgId"][16:], 16)), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": unique, "topic": TOPIC, "transactionId": unique,
    }  # fmt: skip
    return _frame(
        {"code": 37, "extFields": fields, "flag": 0 if is_answered else 2, "language": "JAVA",
         "opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 513}
    )  # fmt: skip


class _Client:
    """One connection, with `WINDOW` half messages in flight."""

    def __init__(self, number: int, *, is_answered: bool) -> None:
        self.count = 0
        self._is_answered = is_answered
        self._ending: set[int] = set()
        self._number = number
        self._opaque = 0
        self._unique: dict[int, str] = {}

    async def run(self, host: str, port: int, until: float) -> None:
        """Begin transactions until `until`, and end all of them."""
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(WINDOW):
            writer.write(self._next())
        while self._unique or self._ending:
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size)
            header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
            if header["opaque"] in self._ending:
                self._ending.discard(header["opaque"])
                assert header["code"] == 0, header
                continue
            unique = self._unique.pop(header["opaque"])
            if header["code"] == 0:
                self.count += 1
                end = header["opaque"] + 1_000_000_000
                if self._is_answered:
                    self._ending.add(end)
                fields = header["extFields"]
                writer.write(_commit(end, fields, unique, is_answered=self._is_answered))
            if time.monotonic() < until:
                writer.write(self._next())
        await writer.drain()
        await asyncio.sleep(1)
        writer.close()

    def _next(self) -> bytes:
        self._opaque += 1
        unique = f"{os.getpid():08X}{self._number:08X}{self._opaque:016X}"
        self._unique[self._opaque] = unique
        return _half(self._opaque, unique, self._opaque % 4)


def _cpu_s(server: Server) -> float:
    ticks = 0
    for pid in server.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def _load(address: str, seconds: float, *, is_answered: bool) -> tuple[int, float]:
    host, _, port = address.rpartition(":")
    clients = [_Client(number, is_answered=is_answered) for number in range(CONNECTIONS)]
    began = time.monotonic()
    until = began + seconds
    await asyncio.gather(*(client.run(host, int(port), until) for client in clients))
    return sum(client.count for client in clients), seconds


def _measure(server: Server, seconds: float, *, is_answered: bool) -> tuple[float, float]:
    """Return transactions per second, and CPU microseconds per transaction."""
    before = _cpu_s(server)
    count, took = asyncio.run(_load(server.broker_addr, seconds, is_answered=is_answered))
    return count / took, (_cpu_s(server) - before) * 1e6 / max(1, count)


_PEERS: Final[dict[str, Callable[[Path, Flush], Server]]] = {
    "kourou": lambda home, flush: start_kourou(home, flush=flush),
    "java": java_server.start,
}


def _print(found: Mapping[str, list[tuple[float, float]]], flush: Flush) -> None:
    cpu = {name: statistics.median(cpu for _, cpu in figures) for name, figures in found.items()}
    for name, figures in found.items():
        rate = statistics.median(rate for rate, _ in figures)
        print(f"{name:8} {flush}: {rate:8.0f} transactions/s {cpu[name]:6.1f} us CPU each")
    if len(cpu) == len(_PEERS):
        print(f"CPU per transaction: {cpu['java'] / cpu['kourou']:.1f} x; goal >= {GOAL} x")


def main() -> None:
    """Measure the peers in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="kourou,java")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--warm", type=float, default=10)
    parser.add_argument("--flush", default="async", choices=("async", "sync"))
    parser.add_argument("--answered", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        servers = {
            name: _PEERS[name](Path(home) / name, options.flush)
            for name in options.peers.split(",")
        }
        try:
            for server in servers.values():
                _measure(server, options.warm, is_answered=options.answered)
                server.pause()
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    server.resume()
                    found[name].append(
                        _measure(server, options.seconds, is_answered=options.answered)
                    )
                    server.pause()
            _print(found, options.flush)
        finally:
            for server in servers.values():
                server.kill()


if __name__ == "__main__":
    main()

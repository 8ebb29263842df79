"""Tests of datagrams with task reports over real sockets, without Spark."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from kourou.errors import ConfigError
from kourou.spark.report_channel import (
    RECEIVER_SETTING,
    ReceiverAddress,
    ReportReceiver,
    reported,
)
from kourou.spark.task_reports import BATCH_ID, QUERY_ID, ReadReport, TaskPosition

QUERY = UUID(int=5)
TOKEN = bytes(range(16))
ADDRESS = ReceiverAddress("127.0.0.1", 4711, TOKEN)


class Context:
    """A task's context as Spark gives it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)

    def stageId(self) -> int:  # noqa: N802
        return 3

    def partitionId(self) -> int:  # noqa: N802
        return 1

    def taskAttemptId(self) -> int:  # noqa: N802
        return 40

    def attemptNumber(self) -> int:  # noqa: N802
        return 2


def context(address: object, **changes: str) -> Any:
    return Context({RECEIVER_SETTING: str(address), QUERY_ID: str(QUERY), BATCH_ID: "7", **changes})


class Received:
    """A receiver, and the reports that it received."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.reports: list[ReadReport] = []
        self.loop = asyncio.new_event_loop()
        self._arrived = asyncio.Event()
        self.receiver = ReportReceiver(self.loop, host, 0, TOKEN, self._add)
        self.address = ReceiverAddress(host, self.receiver.port, TOKEN)

    def wait(self) -> list[ReadReport]:
        """Return the reports when one has arrived."""
        self.loop.run_until_complete(asyncio.wait_for(self._arrived.wait(), 60))
        return self.reports

    def close(self) -> None:
        self.receiver.close()
        self.loop.close()

    def _add(self, report: ReadReport) -> None:
        self.reports.append(report)
        self._arrived.set()


@pytest.fixture
def received() -> Iterator[Received]:
    held = Received()
    yield held
    held.close()


def read(context: Any, rows: int = 10) -> int:
    """Report a read of `rows` rows; return the number that the task has counted."""
    with reported(context) as counts:
        counts.rows = rows
        counts.pulled_bytes = 900
        counts.pulls = 2
        counts.waited_s = 0.0126
    return counts.rows


def test_report_of_a_task_arrives(received: Received) -> None:
    read(context(received.address))

    received.receiver.drain()

    position = TaskPosition(query=QUERY, batch=7, stage=3, partition=1, task=40, attempt=2)
    assert received.reports == [ReadReport(position, 10, 900, 2, 13)]


def test_host_name_is_resolved_without_delaying_the_task(received: Received) -> None:
    read(context(ReceiverAddress("localhost", received.address.port, TOKEN)))

    assert [report.rows for report in received.wait()] == [10]


def test_read_that_spark_ends_early_is_reported(received: Received) -> None:
    def rows() -> Generator[int, None, None]:
        with reported(context(received.address)) as counts:
            for counts.rows in range(1, 100):
                yield counts.rows

    reading = rows()
    assert [next(reading) for _ in range(4)] == [1, 2, 3, 4]
    reading.close()

    received.receiver.drain()
    assert [report.rows for report in received.reports] == [4]


def test_failed_task_is_not_reported(received: Received) -> None:
    with pytest.raises(OSError, match="broker"), reported(context(received.address)):
        raise OSError("broker")

    received.receiver.drain()
    assert received.reports == []


@pytest.mark.parametrize(
    "setting",
    [
        ADDRESS,  # nobody listens
        "255.255.255.255:1",
        ReceiverAddress("255.255.255.255", 9, TOKEN),  # refused by the operating system
        ReceiverAddress("absent.invalid", 9, TOKEN),
        ReceiverAddress("x" * 300, 9, TOKEN),
        "",
        "abc",
        f"{TOKEN.hex()}@:5",
        f"{TOKEN.hex()}@host:70000",
        f"{TOKEN.hex()[2:]}@host:70",
    ],
)
def test_receiver_that_cannot_be_reached_does_not_fail_the_task(setting: object) -> None:
    assert read(context(setting)) == 10


@pytest.mark.parametrize("changes", [{QUERY_ID: "q"}, {BATCH_ID: "x"}, {BATCH_ID: "-1"}])
def test_unknown_position_is_not_reported(received: Received, changes: dict[str, str]) -> None:
    read(context(received.address, **changes))

    received.receiver.drain()
    assert received.reports == []


def test_task_without_the_setting_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)

    read(Context({QUERY_ID: str(QUERY), BATCH_ID: "7"}))
    with reported() as counts:  # outside of Spark
        counts.rows = 1


def test_address_survives_its_text() -> None:
    for host in ("10.0.0.7", "driver.example", "[::1]", "::1"):
        address = ReceiverAddress(host, 65535, TOKEN)
        assert ReceiverAddress.parse(str(address)) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_receiver_listens_on_each_form_of_address(host: str) -> None:
    held = Received(host)
    try:
        read(context(held.address))
        assert held.wait()
    finally:
        held.close()


def test_foreign_datagrams_are_logged_once(
    received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for datagram in (b"", b"\x01" * 101, b"x" * 60_000):
            sender.sendto(datagram, ("127.0.0.1", received.receiver.port))
        read(context(received.address))
        received.receiver.drain()

    assert len(received.reports) == 1
    assert [record.msg.split()[0] for record in caplog.records] == ["spark_report.refused"]


def test_port_in_use_is_refused_with_a_remedy(received: Received) -> None:
    for host, port in (("127.0.0.1", received.receiver.port), ("absent.invalid", 0)):
        with pytest.raises(ConfigError, match=r"cannot listen on .* use another port, or 0"):
            ReportReceiver(received.loop, host, port, TOKEN, received.reports.append)


def test_receiver_that_is_closed_drains_nothing() -> None:
    held = Received()
    read(context(held.address))
    held.close()

    held.receiver.drain()

    assert held.reports == []

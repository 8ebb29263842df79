"""Datagrams with task reports: from Spark's workers to a receiver in the driver program.

Spark copies the settings of a session into each task of a streaming query that is started from it.
One setting has the receiver's address and a random token. A task without the setting sends nothing.
A lost report costs its numbers only: sending never waits and never fails.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pyspark import TaskContext

from kourou.errors import ConfigError, ProtocolError
from kourou.spark.task_reports import (
    BATCH_ID,
    QUERY_ID,
    REPORT_BYTES,
    TOKEN_BYTES,
    ReadCounts,
    ReadReport,
    TaskPosition,
    decode_report,
    encode_report,
)

log = logging.getLogger(__name__)

RECEIVER_SETTING: Final = "spark.kourou.receiver.token"
"""Setting of a session with the receiver's address. Spark redacts settings with `token` in their
names in its logs and its console."""

_DRAIN_DATAGRAMS_MAX: Final = 10_000
"""Maximum number of datagrams that are received without a pause."""

_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Requested size of the receive buffer; the operating system may give less."""

_RESOLVING: Final = threading.BoundedSemaphore(4)
"""Limits the threads of a worker that look up the driver's host name."""


@dataclass(frozen=True, slots=True)
class ReceiverAddress:
    """Address of a receiver, and the token that its reports must have."""

    host: str
    port: int
    token: bytes

    def __str__(self) -> str:
        """Return the text for the setting."""
        return f"{self.token.hex()}@{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> ReceiverAddress | None:
        """Return the address of a setting; None if the text is not one."""
        token_text, _, address = text.partition("@")
        host, _, port = address.rpartition(":")
        try:
            token = bytes.fromhex(token_text)
            number = int(port)
        except ValueError:
            return None
        if len(token) != TOKEN_BYTES or not host or not 0 < number < 2**16:
            return None
        return ReceiverAddress(host, number, token)


@contextmanager
def reported(context: TaskContext | None = None) -> Iterator[ReadCounts]:
    """Yield counts for a task to update, and report them at its end; a failed task is not reported.

    Args:
        context: the running task; None: that of this process.
    """
    counts = ReadCounts()
    try:
        yield counts
    except GeneratorExit:
        _report(counts, context)  # Spark has enough rows
        raise
    _report(counts, context)


def _report(counts: ReadCounts, context: TaskContext | None) -> None:
    context = context or TaskContext.get()
    setting = None if context is None else context.getLocalProperty(RECEIVER_SETTING)
    address = None if setting is None else ReceiverAddress.parse(setting)
    if context is None or address is None:
        return
    try:
        datagram = encode_report(_read_report(counts, context), address.token)
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        log.debug("spark_report.omitted reason=%s", error)  # not in a streaming query
    else:
        _send(address, datagram)


def _read_report(counts: ReadCounts, context: TaskContext) -> ReadReport:
    """Return the report of a task; raises an error if Spark has not set what it needs."""
    position = TaskPosition(
        UUID(context.getLocalProperty(QUERY_ID)),
        int(context.getLocalProperty(BATCH_ID)),
        context.stageId(),
        context.partitionId(),
        context.taskAttemptId(),
        context.attemptNumber(),
    )
    waited_ms = round(counts.waited_s * 1000)
    return ReadReport(position, counts.rows, counts.pulled_bytes, counts.pulls, waited_ms)


def _send(address: ReceiverAddress, datagram: bytes) -> None:
    """Send a datagram without waiting: a host name is looked up in a thread of its own."""
    try:
        ipaddress.ip_address(address.host.strip("[]"))
    except ValueError:
        if _RESOLVING.acquire(blocking=False):
            try:
                thread = threading.Thread(
                    target=_resolve_and_send, args=(address, datagram), daemon=True
                )
                thread.start()
            except RuntimeError as error:  # no more threads
                _RESOLVING.release()
                log.debug("spark_report.lost reason=%s", error)
    else:
        _send_now(address, datagram)


def _resolve_and_send(address: ReceiverAddress, datagram: bytes) -> None:
    try:
        _send_now(address, datagram)
    finally:
        _RESOLVING.release()


def _send_now(address: ReceiverAddress, datagram: bytes) -> None:
    try:
        family, target = _resolved(address.host, address.port)
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(datagram, target)
    except (OSError, UnicodeError) as error:
        log.debug("spark_report.lost reason=%s", error)


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the socket address of a host; raises OSError or UnicodeError."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    return found[0][0], found[0][4]


class ReportReceiver:
    """Receives reports in an event loop; used in the loop's thread only.

    Args:
        loop: the event loop.
        bind_host: address or name to listen on.
        port: UDP port; 0: any free one.
        token: token that reports must have.
        on_report: called with each report.

    Attributes:
        port: the port.

    Raises:
        ConfigError: the port cannot be bound.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bind_host: str,
        port: int,
        token: bytes,
        on_report: Callable[[ReadReport], None],
    ) -> None:
        self._loop = loop
        self._token = token
        self._on_report = on_report
        self._refused = 0
        try:
            self._socket = _bound(bind_host, port)
        except (OSError, UnicodeError, OverflowError) as error:
            raise ConfigError(
                f"the receiver of task reports cannot listen on {bind_host}:{port}, "
                f"from spark.driver.bindAddress and the argument port of track(): {error}; "
                "use another port, or 0 for any free one"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        loop.add_reader(self._socket, self.drain)

    def drain(self) -> None:
        """Receive the datagrams that have arrived."""
        for _ in range(_DRAIN_DATAGRAMS_MAX):
            try:
                datagram = self._socket.recv(REPORT_BYTES + 1)
            except OSError:  # none left, or closed
                return
            try:
                report = decode_report(datagram, self._token)
            except ProtocolError as error:
                if not self._refused:  # anyone may send datagrams, and must not fill the log
                    log.warning("spark_report.refused reason=%s", error)
                self._refused += 1
            else:
                self._on_report(report)

    def close(self) -> None:
        """Close the port; reports that workers still send are lost."""
        self._loop.remove_reader(self._socket)
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    family, address = _resolved(host, port)
    receiver = socket.socket(family, socket.SOCK_DGRAM)
    try:
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        receiver.bind(address)
    except BaseException:
        receiver.close()
        raise
    return receiver

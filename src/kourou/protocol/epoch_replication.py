"""Frames of the controller-mode replication protocol: the classic one with epochs and broker ids.

A slave connects to the HA port of its master:

    slave -> master    handshake   1(4) from_last_file(2) learner(2) broker_id(8)
    master -> slave    handshake   1(4) size(4) end(8) epoch(4) [epoch(4) start(8)] ...
    slave -> master    report      2(4) position(8)
    master -> slave    transfer    2(4) size(4) position(8) epoch(4) epoch_start(8) confirm(8)
                                   bytes(size)

Integers are big-endian. The master's handshake has its epochs and the end of its log. The slave
truncates its own log to the position up to which both are equal, and reports that. Reports and
transfers are then those of `kourou.protocol.replication`; a transfer without bytes is a heartbeat.
A transfer names an epoch of the master's log; a Java master names the next one with the last bytes
before it, so `epoch_start` may be greater than `position`.

Source: AutoSwitchHAClient.java, AutoSwitchHAConnection.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from kourou.errors import EpochError, FrameTooLargeError, MalformedFrameError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.protocol.frame_pieces import FramePieces

_HANDSHAKE: Final = 1
_TRANSFER: Final = 2

_STATE: Final = Struct(">i")
_SLAVE_HANDSHAKE: Final = Struct(">ihhq")
_REPORT: Final = Struct(">iq")
_MASTER_HEAD: Final = Struct(">iiqi")
_TRANSFER_REST: Final = Struct(">qq")
_ENTRY: Final = Struct(">iq")

TRANSFER_HEAD_BYTES: Final = _MASTER_HEAD.size + _TRANSFER_REST.size
TRANSFER_BYTES_MAX: Final = 4 * 1024 * 1024 - TRANSFER_HEAD_BYTES
"""Most log bytes of one transfer: Java's slave reads into a buffer of 4 MiB."""
NO_POSITION: Final = -1
EPOCHS_MAX: Final = 1_000
"""Most epochs of a handshake: Java's master has room for no more."""


class SlaveHandshake(NamedTuple):
    """First frame of a slave.

    Attributes:
        broker_id: the slave's id, which its controller has assigned.
        from_last_file: an empty slave wants the log from the start of the master's last file.
        is_learner: the slave never becomes a member of the in-sync set.
    """

    broker_id: int
    from_last_file: bool = False
    is_learner: bool = False


class Report(NamedTuple):
    """A slave has the master's log up to a position."""

    position: int


class MasterHandshake(NamedTuple):
    """A master's answer to a handshake.

    Attributes:
        end: end of the master's log.
        epochs: the epochs of its log.
    """

    end: int
    epochs: EpochList


class EpochTransfer(NamedTuple):
    """Bytes of the master's log, of one epoch.

    Attributes:
        position: position of the first byte; `NO_POSITION` in a heartbeat of a Java master whose
            log is empty.
        epoch: see the module; not validated.
        confirm: position up to which the log is on all members of the in-sync set.
        data: the bytes; empty in a heartbeat. Those of a decoder are a view of what it was fed.
    """

    position: int
    epoch: EpochEntry
    confirm: int
    data: bytes | memoryview


SlaveFrame = SlaveHandshake | Report
MasterFrame = MasterHandshake | EpochTransfer


def encode_slave_handshake(handshake: SlaveHandshake) -> bytes:
    """Return the first frame of a slave."""
    broker_id, from_last_file, is_learner = handshake
    return _SLAVE_HANDSHAKE.pack(_HANDSHAKE, from_last_file, is_learner, broker_id)


def encode_report(position: int) -> bytes:
    """Return the frame by which a slave reports that it has the log up to `position`."""
    return _REPORT.pack(_TRANSFER, position)


def encode_master_handshake(end: int, epochs: EpochList) -> bytes:
    """Return the answer to a handshake, with the newest `EPOCHS_MAX` epochs."""
    entries = list(epochs)[-EPOCHS_MAX:]
    size = len(entries) * _ENTRY.size
    head = _MASTER_HEAD.pack(_HANDSHAKE, size, end, epochs.last_epoch)
    return head + b"".join(_ENTRY.pack(*entry) for entry in entries)


def encode_transfer_head(position: int, epoch: EpochEntry, confirm: int, size: int) -> bytes:
    """Return the start of a transfer, which `size` log bytes must follow; 0 for a heartbeat."""
    head = _MASTER_HEAD.pack(_TRANSFER, size, position, epoch.epoch)
    return head + _TRANSFER_REST.pack(epoch.start, confirm)


class SlaveFrameDecoder:
    """Decodes the handshakes and reports of one slave; holds at most 15 bytes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> list[SlaveFrame]:
        """Return the frames that `data` completes, oldest first.

        Raises:
            MalformedFrameError: the state is unknown, or a number is out of range.
        """
        received, at, frames = self._rest + data, 0, list[SlaveFrame]()
        while len(received) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(received, at)
            layout = _REPORT if _is_transfer(state) else _SLAVE_HANDSHAKE
            if len(received) - at < layout.size:
                break
            frames.append(_slave_frame(*layout.unpack_from(received, at)))
            at += layout.size
        self._rest = received[at:]
        return frames


class MasterFrameDecoder:
    """Decodes the frames of one master.

    Holds one incomplete frame: at most `data_bytes_max` and a head.
    """

    __slots__ = ("_data_bytes_max", "_frames", "_pieces")

    def __init__(self, data_bytes_max: int = TRANSFER_BYTES_MAX) -> None:
        """Begin at the start of a frame; refuse transfers of more than `data_bytes_max`."""
        self._data_bytes_max = data_bytes_max
        self._frames: list[MasterFrame] = []
        self._pieces = FramePieces(self._take)

    def feed(self, data: bytes | memoryview) -> list[MasterFrame]:
        """Return the frames that `data` completes, oldest first.

        Raises:
            MalformedFrameError: a state is unknown, a number is out of range, or epochs do not
                increase.
            FrameTooLargeError: a frame exceeds the limit.
        """
        self._frames = []
        self._pieces.feed(data)
        return self._frames

    def _take(self, data: memoryview) -> int:
        if len(data) < _MASTER_HEAD.size:
            return _MASTER_HEAD.size
        state, size, position, epoch = _MASTER_HEAD.unpack_from(data)
        is_transfer = _is_transfer(state)
        limit = self._data_bytes_max if is_transfer else EPOCHS_MAX * _ENTRY.size
        if size < 0 or (not is_transfer and size % _ENTRY.size):
            raise MalformedFrameError(f"the master sent a frame with a body of {size} bytes")
        if size > limit:
            raise FrameTooLargeError(size, limit)
        start = TRANSFER_HEAD_BYTES if is_transfer else _MASTER_HEAD.size
        end = start + int(size)
        if len(data) < end:
            return end
        body = data[start:end]
        if position < (0 if size or not is_transfer else NO_POSITION):
            raise MalformedFrameError(f"the master sent the negative log position {position}")
        if is_transfer:
            epoch_start, confirm = _TRANSFER_REST.unpack_from(data, _MASTER_HEAD.size)
            entry = EpochEntry(epoch, epoch_start)
            self._frames.append(EpochTransfer(position, entry, confirm, body))
        else:
            self._frames.append(MasterHandshake(position, _epochs(_ENTRY.iter_unpack(body))))
        return end


def _is_transfer(state: int) -> bool:
    if state in (_HANDSHAKE, _TRANSFER):
        return state == _TRANSFER
    raise MalformedFrameError(
        f"the peer is in state {state}; {_HANDSHAKE} (handshake) and {_TRANSFER} (transfer) are "
        "known: it may use the classic protocol (enableControllerMode differs)"
    )


def _slave_frame(state: int, *fields: int) -> SlaveFrame:
    if state == _TRANSFER:
        [position] = fields
        if position < 0:
            raise MalformedFrameError(f"a slave reported the negative log position {position}")
        return Report(position)
    from_last_file, is_learner, broker_id = fields
    if broker_id < 0:
        raise MalformedFrameError(f"a slave has the negative broker id {broker_id}")
    return SlaveHandshake(broker_id, from_last_file == 1, is_learner == 1)


def _epochs(entries: Iterable[tuple[int, ...]]) -> EpochList:
    try:
        return EpochList(EpochEntry(epoch, start) for epoch, start in entries)
    except EpochError as error:
        raise MalformedFrameError(f"the epochs of the master are invalid: {error}") from error

"""The two protocols of a master's connections: how frames of slaves read, and how its own look.

Pure. The classic protocol begins with a report. In controller mode a slave first introduces itself
by its broker id, and is answered with the epochs of the log, by which it finds the position up to
which its own log is equal. A transfer there never has bytes of two epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kourou.errors import ReplicationRefusedError
from kourou.model.epochs import NO_EPOCH, POSITION_MAX, EpochEntry, EpochList
from kourou.protocol.epoch_replication import (
    Report,
    SlaveFrame,
    SlaveFrameDecoder,
    SlaveHandshake,
    encode_master_handshake,
)
from kourou.protocol.epoch_replication import encode_transfer_head as encode_epoch_transfer_head
from kourou.protocol.replication import ReportDecoder, encode_transfer_head


class MasterDialect(Protocol):
    """The protocol of one connection."""

    def feed(self, data: memoryview) -> Sequence[SlaveFrame]:
        """Return the frames that `data` completes, oldest first.

        Raises:
            ProtocolError: it is none of this protocol.
            ReplicationRefusedError: the slave cannot be served.
        """

    def answer(self, log_end: int) -> bytes:
        """Return the answer to a handshake, with the end of the bytes that may be sent."""

    def transfer_end(self, position: int) -> int:
        """Return where a transfer that begins at the position must end at the latest.

        Raises:
            ReplicationRefusedError: the position belongs to no epoch.
        """

    def transfer_head(self, position: int, size: int) -> bytes:
        """Return the start of a transfer, which `size` log bytes follow; 0 for a heartbeat."""

    @property
    def has_news(self) -> bool:
        """Whether a heartbeat would tell the slave something new."""


class ClassicDialect:
    """The classic protocol; a `MasterDialect`."""

    def __init__(self) -> None:
        self._decoder = ReportDecoder()

    def feed(self, data: memoryview) -> Sequence[SlaveFrame]:
        """Return the reports."""
        return [Report(position) for position in self._decoder.feed(data)]

    def answer(self, log_end: int) -> bytes:  # noqa: ARG002 - of the protocol
        """Return nothing: there are no handshakes."""
        return b""

    def transfer_end(self, position: int) -> int:  # noqa: ARG002 - of the protocol
        """Return no limit."""
        return POSITION_MAX

    def transfer_head(self, position: int, size: int) -> bytes:
        """Return position and size."""
        return encode_transfer_head(position, size)

    @property
    def has_news(self) -> bool:
        """Return False: it only shows that the master is alive."""
        return False


class EpochSource(Protocol):
    """The facts that frames of controller mode have besides bytes of the log."""

    @property
    def broker_id(self) -> int:
        """The id of the master itself."""

    @property
    def epochs(self) -> EpochList:
        """The epochs of the log."""

    @property
    def confirm_position(self) -> int:
        """The position up to which all members of the in-sync set have the log."""


class EpochDialect:
    """The protocol of controller mode; a `MasterDialect`."""

    def __init__(self, source: EpochSource) -> None:
        self._source = source
        self._decoder = SlaveFrameDecoder()
        self._is_known = False
        self._confirmed = 0  # as the slave was told last

    def feed(self, data: memoryview) -> Sequence[SlaveFrame]:
        """Return the handshake, which must come first, and the reports."""
        frames = self._decoder.feed(data)
        for frame in frames:
            is_handshake = isinstance(frame, SlaveHandshake)
            if is_handshake == self._is_known:
                text = "a second handshake" if is_handshake else "a report before its handshake"
                raise ReplicationRefusedError(f"it has sent {text}")
            if isinstance(frame, SlaveHandshake):
                self._introduce(frame.broker_id)
        return frames

    def _introduce(self, broker_id: int) -> None:
        if broker_id == self._source.broker_id:
            raise ReplicationRefusedError(
                f"it has this master's own broker id {broker_id}: one of the two brokers has a "
                "copy of the other one's brokerIdentity file"
            )
        self._is_known = True

    def answer(self, log_end: int) -> bytes:
        """Return the epochs."""
        return encode_master_handshake(log_end, self._source.epochs)

    def transfer_end(self, position: int) -> int:
        """Return the end of the epoch."""
        found = self._source.epochs.at(position)
        if found is None:
            raise ReplicationRefusedError(
                f"it needs the log from position {position}, before its first epoch "
                f"{next(iter(self._source.epochs), None)}: start the slave with an empty store"
            )
        return found[1]

    def transfer_head(self, position: int, size: int) -> bytes:
        """Return position and size, with the epoch of these bytes and the confirm offset."""
        found = self._source.epochs.at(position)
        entry = EpochEntry(NO_EPOCH, 0) if found is None else found[0]
        self._confirmed = self._source.confirm_position
        return encode_epoch_transfer_head(position, entry, self._confirmed, size)

    @property
    def has_news(self) -> bool:
        """Whether more of the log is confirmed."""
        return self._source.confirm_position > self._confirmed

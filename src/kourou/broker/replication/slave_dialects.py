"""The two protocols of a slave's connections: how the transfer begins, and which bytes follow.

Pure. With the classic protocol a slave compares the end of its log with the bytes of its master's.
In controller mode it first compares the epochs:

    epochs of both logs                     action
    equal up to the slave's end             compare the bytes before it; report it; append
    equal up to some position below it      compare the bytes before that; truncate the log there,
                                            and connect again
    the same newest one, of which the       refuse the master: it has lost messages
    master's log has less
    nothing in common                       refuse the master
    the master's newest one is older than   refuse the master: it has been deposed
    one that the slave has seen

The epochs of two clusters may be the same, so they alone do not show that both logs are of one.

Source: AutoSwitchHAClient.java, apache/rocketmq 5.5.0, which compares epochs only, and truncates
while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.broker.replication.slave_transfer import SlaveTransfer
from kourou.errors import ReplicationRefusedError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.protocol.epoch_replication import (
    EpochTransfer,
    MasterFrame,
    MasterFrameDecoder,
    MasterHandshake,
    SlaveHandshake,
    encode_slave_handshake,
)
from kourou.protocol.epoch_replication import encode_report as encode_epoch_report
from kourou.protocol.replication import Transfer, TransferDecoder, encode_report

Frame = Transfer | MasterFrame


class SlaveDialect(Protocol):
    """The protocol of one connection."""

    @property
    def verified(self) -> int:
        """The position up to which the own log is known to be the master's; else `UNKNOWN`."""

    @property
    def reported(self) -> int:
        """The position that `greeting` reports; else `UNKNOWN`."""

    @property
    def confirmed(self) -> int:
        """The position up to which the master says that its in-sync set has the log."""

    def greeting(self) -> bytes:
        """Return the first bytes of the connection."""

    def report(self, position: int) -> bytes:
        """Return a report that the log is stored up to a position."""

    def feed(self, data: memoryview) -> Sequence[Frame]:
        """Return the frames that `data` completes, oldest first; their bytes are views of it.

        Raises:
            ProtocolError: it is none of this protocol.
        """

    def new_epoch(self, frame: Frame) -> EpochEntry | None:
        """Return the epoch that must be noted before `on_frame` takes the frame, if any."""

    def on_frame(self, frame: Frame) -> tuple[int, bytes | memoryview]:
        """Take a frame; return the position of bytes to append, and these.

        Raises:
            ReplicationRefusedError: the logs do not match.
        """


class ClassicSlaveDialect:
    """The classic protocol; a `SlaveDialect`."""

    confirmed = 0

    def __init__(self, transfer: SlaveTransfer) -> None:
        """Compare the logs as `transfer` says."""
        self._transfer = transfer
        self._decoder = TransferDecoder()
        self.reported: Final = transfer.position

    @property
    def verified(self) -> int:
        """The position up to which the bytes were compared."""
        return self._transfer.compared

    def greeting(self) -> bytes:
        """Return the first report."""
        return encode_report(self.reported)

    def report(self, position: int) -> bytes:
        """Return the position."""
        return encode_report(position)

    def feed(self, data: memoryview) -> Sequence[Frame]:
        """Return the transfers."""
        return self._decoder.feed(data)

    def new_epoch(self, frame: Frame) -> EpochEntry | None:  # noqa: ARG002 - of the protocol
        """Return None: there are no epochs."""
        return None

    def on_frame(self, frame: Frame) -> tuple[int, bytes | memoryview]:
        """Compare or return the bytes of a transfer."""
        assert isinstance(frame, Transfer), "the decoder returns nothing else"
        return self._transfer.on_transfer(frame)


class OwnEpochs(Protocol):
    """The epochs of the slave's log; see `EpochLog`."""

    @property
    def epochs(self) -> EpochList: ...

    @property
    def newest_seen(self) -> int: ...


class EpochSlaveDialect:
    """The protocol of controller mode; a `SlaveDialect`.

    Attributes:
        truncate_to: the position at which the own log must be truncated; None if it need not be.
    """

    reported: Final = UNKNOWN

    def __init__(
        self,
        handshake: SlaveHandshake,
        own: OwnEpochs,
        own_end: int,
        tail_before: Callable[[int], bytes],
        *,
        master_epoch: int,
    ) -> None:
        """Begin a connection.

        Args:
            handshake: introduces this slave.
            own: the epochs of the own log, without those that begin at its end.
            own_end: the end of the own log; 0 if it is empty.
            tail_before: returns the bytes before a position of the own log that are compared; not
                called for an empty log. Raises OSError.
            master_epoch: the epoch of the master, as the controller says.
        """
        self._handshake = handshake
        self._own = own
        self._end = own_end
        self._tail_before = tail_before
        self._master_epoch = master_epoch
        self._decoder = MasterFrameDecoder()
        self._epochs: EpochList | None = None  # of the master, after its handshake
        self._transfer: SlaveTransfer | None = None  # after the epochs were compared
        self._common = own_end  # up to here both logs have the same epochs
        self.confirmed = 0
        self.truncate_to: int | None = None

    @property
    def verified(self) -> int:
        """The position up to which the logs are known to be equal; `UNKNOWN` at first."""
        return UNKNOWN if self._transfer is None else self._transfer.compared

    def greeting(self) -> bytes:
        """Return the handshake."""
        return encode_slave_handshake(self._handshake)

    def report(self, position: int) -> bytes:
        """Return the report."""
        return encode_epoch_report(position)

    def feed(self, data: memoryview) -> Sequence[Frame]:
        """Return the handshake and the transfers."""
        return self._decoder.feed(data)

    def new_epoch(self, frame: Frame) -> EpochEntry | None:
        """Return the epoch of the bytes at the frame's position, if it is a new one."""
        if not isinstance(frame, EpochTransfer) or self._epochs is None:
            return None
        entry = self._entry_at(frame)
        is_new = entry is not None and entry.epoch > self._own.epochs.last_epoch
        return entry if is_new else None

    def on_frame(self, frame: Frame) -> tuple[int, bytes | memoryview]:
        """Compare the epochs, or return the bytes of a transfer."""
        if isinstance(frame, MasterHandshake):
            if self._epochs is not None:
                raise ReplicationRefusedError("it has sent a second handshake")
            self._compare(frame)
            return self._end, b""
        assert isinstance(frame, EpochTransfer), "the decoder returns nothing else"
        if self._transfer is None:
            raise ReplicationRefusedError("it has sent a transfer before its handshake was used")
        at: tuple[int, bytes | memoryview] = frame.position, b""
        if frame.data:
            at = self._transfer.on_transfer(Transfer(frame.position, frame.data))
            self._truncate_if_needed(self._transfer)
            if at[1]:
                self._check_epoch(frame)
        if self._transfer.is_compared:
            self.confirmed = max(self.confirmed, frame.confirm)
        return at

    def _compare(self, master: MasterHandshake) -> None:
        """Find the position up to which both logs are equal."""
        seen = max(self._master_epoch, self._own.newest_seen)
        if master.epochs.last_epoch < seen:
            raise ReplicationRefusedError(
                f"it is the master of epoch {master.epochs.last_epoch}, and epoch {seen} has begun"
            )
        self._epochs = master.epochs
        if self._end:
            self._common = self._common_end(master)
        try:
            tail = self._tail_before(self._common) if self._common else b""
        except OSError as error:
            raise ReplicationRefusedError(
                f"the slave's own log cannot be read before position {self._common}: {error}"
            ) from error
        transfer = SlaveTransfer(self._common, tail)
        self._truncate_if_needed(transfer)
        self._transfer = transfer

    def _common_end(self, master: MasterHandshake) -> int:
        """Return the position up to which both logs have the same epochs."""
        own = self._own.epochs
        common = own.common_end(self._end, master.epochs, master.end)
        logs = (
            f"its log has the epochs {_text(master.epochs)} and ends at {master.end}, the "
            f"slave's {_text(own)} and {self._end}"
        )
        if common is None:
            raise ReplicationRefusedError(
                f"{logs}: no epoch begins at the same position in both. They belong to different "
                "brokers, or the slave is too far behind: start it with an empty store to copy the "
                "master's log"
            )
        # A master begins an epoch at each start, so it has all that it has sent in its newest one.
        if common < self._end and own.last_epoch == master.epochs.last_epoch:
            raise ReplicationRefusedError(
                f"{logs}: it has less of epoch {own.last_epoch} than the slave. They belong to "
                "different brokers, or the master has lost messages. Start the slave with an empty "
                "store to copy the master's log"
            )
        return common

    def _truncate_if_needed(self, transfer: SlaveTransfer) -> None:
        """Refuse the master if both logs are equal up to a position below the slave's end only."""
        if self._common < self._end and transfer.is_compared:
            self.truncate_to = self._common
            raise ReplicationRefusedError(
                f"the slave's log ends at {self._end}, and is equal to the master's up to "
                f"{self._common} only: it is truncated there"
            )

    def _entry_at(self, frame: EpochTransfer) -> EpochEntry | None:
        """Return the epoch of the master's log at the frame's position; None before the first.

        A Java master names an epoch with bytes before it, so its handshake tells more. Its epoch
        may be newer than that: it may be elected again.
        """
        assert self._epochs is not None, "the caller checks it"
        if frame.epoch.epoch > self._epochs.last_epoch:
            self._epochs = self._epochs.begin(*frame.epoch)
        found = self._epochs.at(frame.position)
        return None if found is None else found[0]

    def _check_epoch(self, frame: EpochTransfer) -> None:
        """Check that the bytes continue the own log in the same epoch."""
        entry = self._entry_at(frame)
        own = list(self._own.epochs)[-1:]
        if [entry] != own:
            raise ReplicationRefusedError(
                f"it has sent bytes of {entry} at position {frame.position}; the slave's log "
                f"continues with {own}"
            )


def _text(epochs: EpochList) -> str:
    """Return the newest epochs, for an error."""
    entries = [f"{epoch}@{start}" for epoch, start in epochs]
    return ", ".join(["...", *entries[-5:]] if len(entries) > 5 else entries) or "none"

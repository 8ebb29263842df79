"""Rules of replication that a simulation can switch off, to show that it would find their lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kourou.broker.controlling import role_decisions, switching_broker
from kourou.broker.controlling.lease import Lease
from kourou.broker.replication import slave_connection
from kourou.broker.replication.acknowledged import Acknowledged
from kourou.broker.replication.controlled_replica import EpochLog
from kourou.broker.replication.controlled_role import InSyncSet
from kourou.broker.replication.in_sync_keeper import InSyncKeeper
from kourou.broker.replication.in_sync_set import InSyncDecisions
from kourou.broker.replication.slave import ReplicationSlave
from kourou.broker.replication.slave_dialects import EpochSlaveDialect
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.controller import replica_sets
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.heartbeats import elect
from kourou.errors import ReplicationRefusedError
from kourou.model.epochs import POSITION_MAX

Change = tuple[Any, str, Any]
"""Object, name of the attribute, and its value while the rule is off."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: of the rule.
        is_needed: whether acknowledged or read messages are lost without it.
        changes: returns what switches it off.
    """

    name: str
    is_needed: bool
    changes: Callable[[], list[Change]]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the rule off during the block."""
        changes = self.changes()
        before = [vars(owner)[name] for owner, name, _ in changes]
        try:
            for owner, name, value in changes:
                setattr(owner, name, value)
            yield
        finally:
            for (owner, name, _), value in zip(changes, before, strict=True):
                setattr(owner, name, value)


def _no_lease() -> list[Change]:
    def check(self: Lease) -> None:
        self._timer = None

    return [(Lease, "is_held", property(lambda _: True)), (Lease, "_check", check)]


def _shrink_alone() -> list[Change]:
    """Let the set of a master be what it wants before the controller has decided."""
    original = InSyncDecisions.propose

    def propose(self: InSyncDecisions, members: frozenset[int]) -> None:
        original(self, members)
        if members < self.confirmed.members:
            self.confirmed = InSyncSet(members, self.confirmed.epoch)
            self._set([])

    return [(InSyncDecisions, "propose", propose)]


class _Forgetful:
    """Epochs of a slave that does not know which epochs it has seen."""

    newest_seen = -1

    def __init__(self, own: Any) -> None:
        self._own = own

    @property
    def epochs(self) -> Any:
        return self._own.epochs


def _old_masters() -> list[Change]:
    original = EpochSlaveDialect.__init__

    def init(
        self: EpochSlaveDialect,
        handshake: Any,
        own: Any,
        own_end: int,
        *,
        master_epoch: int,
    ) -> None:
        original(self, handshake, _Forgetful(own), own_end, master_epoch=min(master_epoch, -1))

    return [(EpochSlaveDialect, "__init__", init)]


def _unclean_elections() -> list[Change]:
    original = replica_sets._elected

    def elected(current: Any, broker_id: int, alive: Any, *, is_designated: bool) -> int | None:
        found = original(current, broker_id, alive, is_designated=is_designated)
        return elect(current.ids, alive) if found is None else found

    return [(replica_sets, "_elected", elected)]


def _deposed_controllers() -> list[Change]:
    return [(EtcdStore, "leads", lambda self: bool(self._leader_revision))]


def _no_doubt() -> list[Change]:
    original = InSyncDecisions._set

    def set_(self: InSyncDecisions, doubtful: list[Any]) -> None:
        original(self, [])
        self._doubtful = doubtful

    return [(InSyncDecisions, "_set", set_)]


def _timeouts_refuse() -> list[Change]:
    return [(InSyncDecisions, "on_unknown", lambda self, _: self.on_refused())]


def _unconfirmed_reads() -> list[Change]:
    return [(InSyncKeeper, "confirmed_position", lambda _, own_end: own_end)]


def _unconfirmed_slaves() -> list[Change]:
    return [(ReplicationSlave, "unconfirmed_reason", lambda _: "")]


def _some_copies() -> list[Change]:
    """Acknowledge what one other member has, instead of all."""
    original = InSyncKeeper.copied_position

    def copied(self: InSyncKeeper) -> int:
        if original(self) == UNKNOWN and not self._decisions.is_member:
            return UNKNOWN
        return max(map(self.followers.position, self._others), default=POSITION_MAX)

    return [(InSyncKeeper, "copied_position", copied)]


def _no_power_cuts() -> list[Change]:
    return [(Acknowledged, "loss", "")]


def _same_epoch() -> list[Change]:
    """Let a master that restarts go on in its epoch."""
    begin = EpochLog.begin

    def begin_again(self: EpochLog, epoch: int, log_begin: int, log_end: int) -> None:
        if epoch == self.newest_seen and epoch == self.last_epoch:
            return
        begin(self, epoch, log_begin, log_end)

    def decide(broker_id: int, role: Any, written: int, found: Any) -> Any:
        return role_decisions.decide(broker_id, role, -1, found)

    return [(EpochLog, "begin", begin_again), (switching_broker, "decide", decide)]


def _early_reports() -> list[Change]:
    """Let a slave report records before they are synced."""
    return [(slave_connection._Received, "waits_for_sync", False)]


def _no_truncation() -> list[Change]:
    """Let a slave go on with a log whose end its master lacks."""
    original = EpochSlaveDialect._compare

    def compare(self: EpochSlaveDialect, master: Any) -> None:
        try:
            original(self, master)
        except ReplicationRefusedError:
            if self.truncate_to is None or self._end > master.end:
                raise
            self.truncate_to, self.verified = None, self._end

    return [(EpochSlaveDialect, "_compare", compare)]


RULES: Final = {
    rule.name: rule
    for rule in (
        Rule("lease", False, _no_lease),
        Rule("only the controller shrinks the set", True, _shrink_alone),
        Rule("older masters are refused", True, _old_masters),
        Rule("only replicas in sync are elected", True, _unclean_elections),
        Rule("only a controller with its lease answers", False, _deposed_controllers),
        Rule("proposals in doubt count", True, _no_doubt),
        Rule("a time-out settles nothing", True, _timeouts_refuse),
        Rule("only confirmed messages are read", True, _unconfirmed_reads),
        Rule("a slave that has started shows confirmed messages", True, _unconfirmed_slaves),
        Rule("all members have an acknowledged message", True, _some_copies),
        Rule("a power cut is remembered", True, _no_power_cuts),
        Rule("a master that restarts gets a new epoch", True, _same_epoch),
        Rule("reports are durable", True, _early_reports),
        Rule("diverged ends are truncated", True, _no_truncation),
    )
}

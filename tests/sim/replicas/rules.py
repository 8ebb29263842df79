"""Rules of replication that a simulation can switch off, to show that it would find their lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from kourou.broker.controlled_broker import ControlledBroker
from kourou.broker.controlling import role_decisions, switching_broker
from kourou.broker.controlling.failsafe import Failsafe
from kourou.broker.controlling.lease import Lease
from kourou.broker.replication import acknowledged, controlled_replica, slave_connection
from kourou.broker.replication.acknowledged import Acknowledged
from kourou.broker.replication.controlled_replica import EpochLog
from kourou.broker.replication.controlled_role import InSyncSet, MasterClaim, member_name
from kourou.broker.replication.in_sync_keeper import InSyncKeeper
from kourou.broker.replication.in_sync_set import InSyncDecisions
from kourou.broker.replication.slave import ReplicationSlave
from kourou.broker.replication.slave_dialects import EpochSlaveDialect
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.controller import replica_sets
from kourou.controller.elections import Elections
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.heartbeats import elect
from kourou.controller.refusals import Known, Refusals
from kourou.controller.state_store import Stored
from kourou.errors import ReplicationRefusedError
from kourou.model.epochs import NO_EPOCH, POSITION_MAX
from kourou.protocol.record.read import read_record
from kourou.store.lifecycle import StoreFiles
from kourou.store.log import received_bytes
from kourou.store.log.log_scan import fields_of
from kourou.store.recovery import cut
from kourou.store.recovery.recovery import Recovery
from kourou.store.state import epoch_file
from kourou.store.state.ack_mark import AckMark, find_loss
from kourou.store.writer import StoreWriter

Change = tuple[Any, str, Any]
"""Object, name of the attribute, and its value while the rule is off."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: of the rule.
        changes: returns what switches it off.
        drill: the one that shows its lack.
        is_stuck: without it replicas do not come in sync again, but nothing is lost.
        first_seed: of the runs to try; earlier ones show nothing.
        covered_by: rules that prevent the loss when only this one is off; messages are lost when
            all of them are off, too. None: messages are lost, or two masters serve at once, without
            this rule alone. Empty: the rule is no condition of what the simulation checks.
    """

    name: str
    changes: Callable[[], list[Change]]
    drill: str = ""
    covered_by: tuple[str, ...] | None = None
    is_stuck: bool = False
    first_seed: int = 0

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
        tail_before: Any,
        *,
        master_epoch: int,
    ) -> None:
        own, master_epoch = _Forgetful(own), min(master_epoch, -1)
        original(self, handshake, own, own_end, tail_before, master_epoch=master_epoch)

    return [(EpochSlaveDialect, "__init__", init)]


def _unclean_elections() -> list[Change]:
    original = replica_sets._elected

    def elected(current: Any, broker_id: int, alive: Any, *, is_designated: bool) -> int | None:
        found = original(current, broker_id, alive, is_designated=is_designated)
        return elect(current.ids, alive) if found is None else found

    return [(replica_sets, "_elected", elected)]


def _deposed_controllers() -> list[Change]:
    """Let a controller that has led answer as if it still led."""

    def leads(self: EtcdStore) -> bool:
        return bool(self._leader_revision)

    return [(EtcdStore, "leads", leads), (EtcdStore, "_depose", lambda _: None)]


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


def _one_proposal() -> list[Change]:
    """Let a proposal replace those in doubt, as in Java."""
    original = InSyncDecisions.propose

    def propose(self: InSyncDecisions, members: frozenset[int]) -> None:
        self._set([])
        original(self, members)

    return [(InSyncDecisions, "propose", propose)]


def _early_proposals() -> list[Change]:
    """Let a master propose a slave that lacks acknowledged messages."""
    proposing: set[InSyncKeeper] = set()
    confirm, propose = InSyncKeeper.confirm_position, InSyncKeeper._propose_changes

    def position(self: InSyncKeeper) -> int:
        return 0 if self in proposing else confirm.__get__(self)

    def propose_changes(self: InSyncKeeper) -> None:
        proposing.add(self)
        try:
            propose(self)
        finally:
            proposing.discard(self)

    return [
        (InSyncKeeper, "confirm_position", property(position)),
        (InSyncKeeper, "_propose_changes", propose_changes),
    ]


def _older_sets() -> list[Change]:
    """Let a master take any other set that an answer has."""
    original = InSyncDecisions.adopt

    def adopt(self: InSyncDecisions, found: InSyncSet, asked_at_s: float | None = None) -> bool:
        if found.epoch < self.confirmed.epoch:
            self.confirmed = found
            self._set([])
            return True
        return original(self, found, asked_at_s)

    return [(InSyncDecisions, "adopt", adopt)]


def _unsettled_answers() -> list[Change]:
    """Let a controller answer from the state before a write whose result it does not know."""

    async def settle(self: Elections, name: str) -> Any:
        self._check_leads()
        return self._sets.get(name)

    return [(Elections, "_settle", settle)]


def _any_state() -> list[Change]:
    """Let controllers accept a state that lacks what they or brokers know."""
    return [(Known, "contradicted_by", lambda *_: None)]


def _unstored_refusals() -> list[Change]:
    """Let a refusal end with the term of the controller that found it."""

    async def store(self: Elections, name: str, stored: Stored | None) -> Stored | None:
        return stored

    return [
        (Elections, "_store_refusal", store),
        (Refusals, "begin", lambda self, _: self._found.clear()),
    ]


def _size_once() -> list[Change]:
    """Check the least size of the set only when a message is appended."""
    original = InSyncKeeper.copied_position

    def copied(self: InSyncKeeper) -> int:
        if self._fence_reason or not self._decisions.is_member:
            return original(self)
        return min(map(self.followers.position, self._others), default=POSITION_MAX)

    return [(InSyncKeeper, "copied_position", copied)]


def _small_sets() -> list[Change]:
    """Let a master propose sets with which nothing may be acknowledged."""
    original = InSyncKeeper._propose_changes

    def propose_changes(self: InSyncKeeper) -> None:
        config = self._config
        self._config = replace(config, min_in_sync_replicas=1)
        try:
            original(self)
        finally:
            self._config = config
            self._changed()

    return [(InSyncKeeper, "_propose_changes", propose_changes)]


def _unmarked_logs() -> list[Change]:
    def find(mark: AckMark, epochs: Any, log_begin: int, log_end: int) -> str:
        return mark.loss or find_loss(mark, epochs, log_begin, max(log_end, mark.position))

    return [(acknowledged, "find_loss", find)]


def _unmarked_epochs() -> list[Change]:
    def find(mark: AckMark, epochs: Any, log_begin: int, log_end: int) -> str:
        unknown = msgspec.structs.replace(mark, epoch=NO_EPOCH, newest_epoch=NO_EPOCH)
        return find_loss(unknown, epochs, log_begin, log_end)

    return [(acknowledged, "find_loss", find)]


def _restored_stores() -> list[Change]:
    return [(switching_broker, "loss_by_restore", lambda *_: "")]


class _NeverSynced:
    """A disk whose files are not synced."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync(self, _: str) -> None:
        return

    def sync_directory(self, _: str) -> None:
        return


def _quick_cuts() -> list[Change]:
    """Let a truncation end before it is durable."""
    original = cut._cut_files

    def cut_files(disk: Any, files: Any, segment_bytes: int, position: int) -> None:
        original(_NeverSynced(disk), files, segment_bytes, position)

    return [(cut, "_cut_files", cut_files)]


def _unsynced_epochs() -> list[Change]:
    """Let a log go on with an epoch that is not durable."""
    original = epoch_file.replace_epochs

    def replace_epochs(disk: Any, epochs: Any) -> None:
        original(_NeverSynced(disk), epochs)

    return [(controlled_replica, "replace_epochs", replace_epochs)]


def _impatient_controllers() -> list[Change]:
    """Let a new leading controller elect at once."""
    return [(Elections, "_is_lease_over", lambda *_: True)]


def _unsynced_starts() -> list[Change]:
    """Let a start read a log that is not durable."""
    return [(Recovery, "_make_durable", lambda *_: None)]


def _unchecked_records() -> list[Change]:
    """Let a slave append records without comparing their checksums."""

    def checked(buffer: bytes, at: int, position: int, size: int) -> Any:
        header = read_record(buffer, at, check_crc=False)
        assert (header.physical_offset, header.total_size) == (position, size)
        return fields_of(header, buffer)

    return [
        (received_bytes, "ordinary_records", lambda *_: iter(())),
        (received_bytes, "_checked", checked),
    ]


def _confirmed_offsets() -> list[Change]:
    """Let a new master assign queue offsets from what was confirmed on, as in Java."""
    confirmed: dict[str, int] = {}  # by disk
    on_confirmed, init = ReplicationSlave._on_confirmed, StoreWriter.__init__

    def note(self: ReplicationSlave, position: int) -> None:
        confirmed[self._writer._disk.root] = position
        on_confirmed(self, position)

    def init_queues(self: StoreWriter, files: StoreFiles, config: Any, reader: Any) -> None:
        init(self, files, config, reader)
        position = confirmed.pop(files.disk.root, None)
        if position is not None and type(self) is StoreWriter:
            for queue in files.queues:
                queue.next_offset = queue.find_end_before(position)

    return [(ReplicationSlave, "_on_confirmed", note), (StoreWriter, "__init__", init_queues)]


def _early_reports() -> list[Change]:
    """Let a slave report records before they are synced."""
    received = slave_connection._Received
    original = received.stored

    def stored(self: Any) -> None:
        if not vars(self).get("is_reported"):  # again when they are synced
            self.is_reported = True
            original(self)

    return [(received, "waits_for_sync", False), (received, "stored", stored)]


_NO_BYTES_COMPARED: Final = (ReplicationSlave, "_tail_before", lambda _self, _position: b"")


def _epochs_alone() -> list[Change]:
    """Let a slave compare epochs, and neither the bytes of the logs nor their ends."""

    def common_end(self: EpochSlaveDialect, master: Any) -> int:
        common = self._own.epochs.common_end(self._end, master.epochs, master.end)
        if common is None:
            raise ReplicationRefusedError("no epoch begins at the same position")
        return common

    return [(EpochSlaveDialect, "_common_end", common_end), _NO_BYTES_COMPARED]


def _no_truncation() -> list[Change]:
    """Let a slave go on with a log whose end its master lacks."""

    def common_end(self: EpochSlaveDialect, master: Any) -> int:
        if self._end > master.end:
            raise ReplicationRefusedError("the rule that is off is another one")
        return self._end

    return [(EpochSlaveDialect, "_common_end", common_end), _NO_BYTES_COMPARED]


def _broken_promises() -> list[Change]:
    """Let a member become master at once that has just confirmed another one."""
    return [(Failsafe, "may_lead", True)]


def _forgotten_promises() -> list[Change]:
    return [(Failsafe, "start", lambda _: None)]


def _confirmed_by_some() -> list[Change]:
    """Let one confirmation suffice."""

    async def is_confirmed(self: Failsafe, me: Any, epoch: int, members: frozenset[int]) -> bool:
        others = members - {me.broker_id}
        answers = [await self._ask(me, epoch, one) for one in sorted(others)]
        return not others or any(answers)

    return [(Failsafe, "is_confirmed", is_confirmed)]


def _confirmed_in_any_epoch() -> list[Change]:
    """Let replicas confirm the master of an epoch that is not their own."""

    def may_confirm(self: Failsafe, me: Any, claim: MasterClaim) -> bool:
        return (
            self._broker is not None
            and claim.member == member_name(me.broker_name, me.broker_id)
            and self._is_out_of_reach(claim.epoch + 1_000)
        )

    return [(Failsafe, "_may_confirm", may_confirm)]


def _confirmed_members() -> list[Change]:
    """Let a master ask the members of the last confirmed set only."""
    return [(ControlledBroker, "possible_members", lambda self: self.in_sync().members)]


_ENDS_COMPARED: Final = "the ends of both logs are compared"
RULES: Final = {
    rule.name: rule
    for rule in (
        Rule("lease", _no_lease, "missing member"),
        Rule("only the controller shrinks the set", _shrink_alone, "shrink unanswered"),
        Rule("only replicas in sync are elected", _unclean_elections, "replica out of sync"),
        Rule("all members have an acknowledged message", _some_copies, "replica behind"),
        Rule(
            "the size of the set is checked at the acknowledgement",
            _size_once,
            "small set",
            covered_by=("no set below the least size is proposed",),
        ),
        Rule(
            "no set below the least size is proposed",
            _small_sets,
            "small set",
            covered_by=("the size of the set is checked at the acknowledgement",),
        ),
        Rule("proposals in doubt count", _no_doubt, "join unanswered"),
        Rule("a time-out settles nothing", _timeouts_refuse, "join and controller killed"),
        Rule("one proposal at a time", _one_proposal, "two joins"),
        Rule(
            "a slave has all acknowledged messages when it joins", _early_proposals, "join behind"
        ),
        Rule("older sets are ignored", _older_sets, "older set"),
        Rule("decisions in doubt are repeated first", _unsettled_answers, "join in doubt"),
        Rule(
            "only a controller with its lease answers", _deposed_controllers, "deposed controller"
        ),
        Rule(
            "older masters are refused",
            _old_masters,
            "former master",
            covered_by=(
                "only a controller with its lease answers",
                "decisions in doubt are repeated first",
            ),
        ),
        Rule("an older state is refused", _any_state, "older etcd", first_seed=1),
        Rule("a refusal is stored", _unstored_refusals, "older etcd, none knows", first_seed=1),
        Rule("only confirmed messages are read", _unconfirmed_reads, "all replicas behind"),
        Rule(
            "a slave that has started shows confirmed messages",
            _unconfirmed_slaves,
            "restarted slave",
        ),
        Rule("queue offsets continue the log", _confirmed_offsets, "some replica behind"),
        Rule("reports are durable", _early_reports, "unsynced slave", first_seed=5),
        Rule("a power cut is remembered", _no_power_cuts, "unsynced slave"),
        Rule("the log is compared with its mark", _unmarked_logs, "older log"),
        Rule(
            "the epochs are compared with the mark",
            _unmarked_epochs,
            "lost epochs",
            covered_by=(_ENDS_COMPARED,),
        ),
        Rule(
            _ENDS_COMPARED,
            _epochs_alone,
            "lost epochs",
            covered_by=("the epochs are compared with the mark",),
        ),
        Rule(
            "an epoch is durable before its first record",
            _unsynced_epochs,
            "power cut of a new master",
            is_stuck=True,
            first_seed=1,
        ),
        Rule("a restored store is recognised", _restored_stores, "older store"),
        Rule("diverged ends are truncated", _no_truncation, "diverged end", first_seed=1),
        Rule(
            "a truncation is durable",
            _quick_cuts,
            "power cut after truncation",
            covered_by=("a start makes the log durable", _ENDS_COMPARED),
        ),
        Rule(
            "a start makes the log durable",
            _unsynced_starts,
            "power cut after truncation",
            covered_by=("a truncation is durable", _ENDS_COMPARED),
        ),
        Rule("received records are verified", _unchecked_records, "damaged transfer"),
        Rule(
            "a master that restarts gets a new epoch", _same_epoch, "unsynced master", first_seed=8
        ),
        Rule("a member that confirms does not become master", _broken_promises, "member elected"),
        Rule("a promise outlives its process", _forgotten_promises, "restarted member elected"),
        Rule("all members confirm", _confirmed_by_some, "missing member"),
        Rule(
            "a member confirms in its own epoch",
            _confirmed_in_any_epoch,
            "former master without controllers",
        ),
        Rule("members in doubt confirm", _confirmed_members, "join and silence"),
        Rule("a new controller waits for leases", _impatient_controllers, "new controller"),
    )
}

"""State of one broker set: its replicas, its master, and the replicas in sync.

A broker set has the brokers of one broker name. The state is stored as one JSON object, so that
each decision replaces it as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.errors import MalformedBodyError
from kourou.protocol.controller.headers import ElectMasterResponseHeader, SyncStateSet
from kourou.protocol.json_records import record_functions


@dataclass(frozen=True, slots=True)
class Replica:
    """A registered replica.

    Attributes:
        broker_id: its id in the set, from 1; never assigned again after its removal.
        address: where it serves clients.
        register_check_code: the text with which it applied for the id.
    """

    broker_id: int
    address: str
    register_check_code: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is decided about a set: decisions are known that its state lacks.

    Attributes:
        reason: what is known, and the remedy.
        master_epoch, sync_state_set_epoch: the newest epochs that are known.
    """

    reason: str
    master_epoch: int
    sync_state_set_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """One broker set.

    Attributes:
        next_broker_id: the id for the next replica.
        master_broker_id: None before the first election, and while no replica in sync is alive.
        master_epoch: number of changes of the master; 0 before the first election.
        sync_state_set: ids of the replicas in sync, ascending. Only they can be elected.
        sync_state_set_epoch: number of changes of `sync_state_set`.
        unclean_epoch: the last epoch whose master was elected without being in sync; 0 if none was.
        refusal: None unless the set is refused.
    """

    cluster_name: str
    broker_name: str
    replicas: tuple[Replica, ...] = ()
    next_broker_id: int = 1
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int = 0
    unclean_epoch: int = 0
    refusal: Refusal | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all replicas."""
        return tuple(replica.broker_id for replica in self.replicas)

    @property
    def applications(self) -> set[tuple[int, str]]:
        """The applications of the replicas for their ids, which distinguish sets of one name."""
        return {(replica.broker_id, replica.register_check_code) for replica in self.replicas}

    @property
    def known_epochs(self) -> tuple[int, int]:
        """The newest epochs that are known: of the master, and of the set in sync."""
        epochs = self.master_epoch, self.sync_state_set_epoch
        if self.refusal is None:
            return epochs
        refusal = self.refusal.master_epoch, self.refusal.sync_state_set_epoch
        return max(epochs[0], refusal[0]), max(epochs[1], refusal[1])

    @property
    def master_address(self) -> str | None:
        """The address of the master; None without one."""
        master = self.replica(self.master_broker_id)
        return None if master is None else master.address

    @property
    def in_sync(self) -> SyncStateSet:
        """The replicas in sync, as in responses."""
        return SyncStateSet(self.sync_state_set, self.sync_state_set_epoch)

    @property
    def master(self) -> ElectMasterResponseHeader:
        """The master and the epochs, as in the response to an election."""
        return ElectMasterResponseHeader(
            self.master_broker_id, self.master_address, self.master_epoch, self.sync_state_set_epoch
        )

    def replica(self, broker_id: int | None) -> Replica | None:
        """Return the replica with that id; None if it is not registered."""
        for replica in self.replicas:
            if replica.broker_id == broker_id:
                return replica
        return None


_decode, encode_broker_set = record_functions(BrokerSet, "broker set")


def decode_broker_set(text: bytes) -> BrokerSet:
    """Return the broker set of a stored text.

    Raises:
        MalformedBodyError: the text does not parse, or its parts contradict each other.
    """
    broker_set = _decode(text)
    check_broker_set(broker_set)
    return broker_set


def check_broker_set(broker_set: BrokerSet) -> None:
    """Verify that the parts of a stored set do not contradict each other.

    Raises:
        MalformedBodyError: they do.
    """
    ids = set(broker_set.ids)
    mentioned = set(broker_set.sync_state_set) | ({broker_set.master_broker_id} - {None})
    if not mentioned <= ids or len(ids) < len(broker_set.replicas):
        raise MalformedBodyError(
            f"broker set {broker_set.broker_name}: ids {broker_set.ids}, in sync "
            f"{broker_set.sync_state_set}, master {broker_set.master_broker_id}"
        )
    if max(ids, default=0) >= broker_set.next_broker_id:
        raise MalformedBodyError(
            f"broker set {broker_set.broker_name}: the next id {broker_set.next_broker_id} is not "
            f"above {max(ids)}"
        )

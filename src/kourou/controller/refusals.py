"""Refusals of broker sets whose stored state lacks a decision that is known otherwise.

Such a state was emptied, restored from a backup, or is another cluster's: elections from it could
give an epoch out again, or elect a replica that lacks acknowledged messages. A refusal is stored
with its set, because the next leading controller may not hear the replica that knows of the
decision. It ends with the state that contains it, when the newest one is restored, or when an
operator elects a master in spite of it.

A set that the state does not contain is refused only in memory: nobody can be elected in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kourou.controller.broker_set import BrokerSet, Refusal

log = logging.getLogger(__name__)


class Known(NamedTuple):
    """A decision about a set of which somebody knows.

    Attributes:
        source: who knows what, for the reason.
        epoch: that of a master; 0 if unknown.
        master: the id of that master; None if unknown.
        set_epoch: epoch of the set in sync; 0 if unknown.
    """

    source: str
    epoch: int = 0
    master: int | None = None
    set_epoch: int = 0

    def contradicted_by(self, current: BrokerSet | None) -> str | None:
        """Return what the state has instead; None if it contains the decision."""
        current = current or BrokerSet("", "")
        epoch, set_epoch = current.known_epochs
        if self.epoch > epoch:
            return str(current.master_epoch)
        if self.set_epoch > set_epoch:
            return str(current.sync_state_set_epoch)
        if self.master is None or not self.epoch or current.refusal is not None:
            return None
        is_other = self.epoch == epoch and self.master != current.master_broker_id
        return f"epoch {epoch} of master {current.master_broker_id}" if is_other else None


class _Found(NamedTuple):
    """A refusal that is not stored."""

    known: Known
    reason: str


class Refusals:
    """The refusals that are not stored yet, or whose set is not stored; see the module.

    Args:
        limit: returns the greatest number of them.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._found: dict[str, _Found] = {}

    def begin(self, sets: Mapping[str, BrokerSet]) -> None:
        """Keep, for another state, only those that it contradicts as well."""
        found, self._found = self._found, {}
        for name, (known, _) in found.items():
            self.check(name, known, sets.get(name))

    def check(self, name: str, known: Known, current: BrokerSet | None) -> None:
        """Refuse a set if its state lacks what is known."""
        stored = known.contradicted_by(current)
        if stored is None or name in self._found or len(self._found) >= self._limit():
            return
        reason = (
            f"broker set {name}: {known.source}, and the stored state has {stored}: the state was "
            "emptied, restored from a backup, or is another cluster's. Restore the newest state, "
            "or use the right directory or prefix, and restart the controllers. Where there is no "
            "newer state, or a broker of another cluster reports to this one, `kourou cluster "
            f"elect {name} --unclean` continues with the log of one replica"
        )
        self._found[name] = _Found(known, reason)
        log.error("broker_set.refused reason=%s", reason)

    def reason(self, name: str, current: BrokerSet | None) -> str | None:
        """Return why a set is refused; None if it is not."""
        found = self._found.get(name)
        if found is not None:
            return found.reason
        return None if current is None or current.refusal is None else current.refusal.reason

    @property
    def unstored(self) -> Mapping[str, str]:
        """The reasons of those that are not stored, by broker name."""
        return {name: found.reason for name, found in self._found.items()}

    def to_store(self, name: str, current: BrokerSet) -> Refusal | None:
        """Return the refusal to store with a set; None if nothing new is known."""
        found = self._found.get(name)
        if found is None:
            return None
        epoch, set_epoch = current.known_epochs
        return Refusal(
            found.reason, max(epoch, found.known.epoch), max(set_epoch, found.known.set_epoch)
        )

    def on_stored(self, name: str) -> None:
        """Forget a refusal, which the state contains from now on."""
        self._found.pop(name, None)

"""Order of the steps by which a member changes from pulling a topic to popping it, or back; pure.

While it pulls, messages below the committed offset are done. While it pops, the broker moves the
offset with each pop. So the member first releases what it has in the old mode: it drains and
commits the pulled queues, or waits for the answers of its pops. Only then it starts the new mode,
from the offset that the broker has by then.

Other members change at other times. Messages may then be delivered to two members; none is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from kourou.client.consuming.membership.rebalance import QueueChanges, queue_changes
from kourou.model.queue import MessageQueue

NONE: Final = QueueChanges((), ())
"""No changes."""


@dataclass(frozen=True, slots=True)
class ModeChanges:
    """The changes of one topic in one pass.

    Attributes:
        pulled: pulled queues to release and to start.
        popped: popped queues to release and to start.
    """

    pulled: QueueChanges
    popped: QueueChanges = NONE

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return self.pulled.is_empty and self.popped.is_empty


def mode_changes(
    pulled: Collection[MessageQueue],
    popped: Collection[MessageQueue],
    changes: QueueChanges,
    wanted_popped: Collection[MessageQueue],
) -> ModeChanges:
    """Return all changes of a topic, in no order; `next_step` says which may be made now.

    Args:
        pulled: the queues that this member pulls.
        popped: the queues that it pops.
        changes: the changes of the pulled queues, if the topic is pulled.
        wanted_popped: the queues to pop; empty if the topic is pulled.
    """
    if wanted_popped:
        changes = queue_changes(pulled, ())
    return ModeChanges(changes, queue_changes(popped, wanted_popped))


def left_over(changes: ModeChanges, step: ModeChanges) -> ModeChanges:
    """Return the queues to start that `step` leaves out."""

    def of(whole: QueueChanges, part: QueueChanges) -> QueueChanges:
        added = tuple(queue for queue in whole.added if queue not in part.added)
        return QueueChanges((), added, whole.is_shared)

    return ModeChanges(of(changes.pulled, step.pulled), of(changes.popped, step.popped))


def next_step(changes: ModeChanges, *, uses_pulls: bool, uses_pops: bool) -> ModeChanges:
    """Return the part of the changes that may be made now.

    Queues are started in one mode only when nothing is left of the other. The rest must be tried
    again when something was released.

    Args:
        changes: all changes.
        uses_pulls: queues of the topic are pulled, or not released yet.
        uses_pops: queues of the topic are popped, or a pop of it is not answered yet.
    """
    pulled, popped = changes.pulled, changes.popped
    if uses_pops:
        pulled = replace(pulled, added=())
    if uses_pulls:
        popped = replace(popped, added=())
    return ModeChanges(pulled, popped)

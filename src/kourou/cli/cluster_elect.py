"""`kourou cluster elect`: makes a replica the master of its set; as a last resort one that lags.

The loss by an unclean election is computed from the ends of the logs (`expect_loss`, pure): of the
replicas that answer, and of those that do not by their last heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kourou.cli import output
from kourou.cli.controlled_sets import ControlledSet, Controlling, find_set, print_master
from kourou.cli.exits import print_stderr
from kourou.cli.options import confirm
from kourou.client.administration.admin import AdminClient, Elected
from kourou.errors import KourouError, UsageError
from kourou.protocol.controller.headers import EpochEntry

ELECT_HELP: Final = """\
Make a replica of a set, whose master controllers elect, its master.

\b
Without --unclean, a replica that is in sync and alive becomes master:
--id, or else the one with the longest log. Nothing acknowledged is lost,
and clients follow within a second. See also `kourou cluster move`.

With --unclean, a replica that is not in sync becomes master, if no replica
in sync is alive and none will return: ACKNOWLEDGED MESSAGES ARE LOST. The
command first shows how many bytes of the log, as far as that is known, and
asks. Replicas with a longer log are truncated when they return. Stop the
old master before: with failsafe it would serve on beside the new one.
A set that the controllers refuse, because their state is older than what
its replicas know, goes on likewise: with the replica that is elected.

\b
Examples:
  kourou cluster elect broker-a --id 2
  kourou cluster elect broker-a --unclean --dir ./cluster
  kourou cluster elect broker-a --unclean --controllers 10.0.0.1:19876 --yes

Exit codes: 0 elected, or master already, 1 refused or not confirmed, 2 wrong option, 3 no
controller answers.
"""


@dataclass(frozen=True, kw_only=True)
class LogState:
    """The log of a replica.

    Attributes:
        epochs: its epochs; empty if only the last heartbeat is known.
        epoch, end: the newest epoch and the end.
        answers: whether the replica answers.
    """

    broker_id: int
    address: str
    epoch: int
    end: int
    epochs: tuple[EpochEntry, ...] = ()
    answers: bool = True


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss by the election of a replica.

    Attributes:
        bytes: at least so many bytes of the log that others had; 0: none is known.
        known_end: the longest log that is known of the set, in the newest epoch.
        unknown: replicas whose log is not known well enough: it may have more.
    """

    bytes: int
    known_end: int
    unknown: tuple[int, ...] = ()


def elect(broker: str, broker_id: int | None, controlling: Controlling, *, as_json: bool) -> None:
    """Make a replica in sync master, and print it."""

    async def change(admin: AdminClient) -> dict[str, object]:
        found = await find_set(admin, broker, controlling.controllers)
        chosen = best_in_sync(found, broker, broker_id)
        info, master = found.info, found.master
        if info and master and master.broker_id == chosen and not found.refusal:
            return _row(broker, chosen, master.broker_address, info.master_epoch)
        elected = await admin.elect_master(
            found.controllers, cluster="", broker_name=broker, broker_id=chosen
        )
        return _row(broker, elected.broker_id, elected.address, elected.epoch)

    print_master(controlling.run(change), as_json=as_json)


def elect_unclean(
    broker: str, broker_id: int | None, controlling: Controlling, *, yes: bool, as_json: bool
) -> None:
    """Make a replica master that is not in sync, after its loss was confirmed."""

    async def plan(admin: AdminClient) -> tuple[ControlledSet, LogState, Loss]:
        found = await find_set(admin, broker, controlling.controllers)
        if found.live_in_sync_ids and not found.refusal:
            ids = found.live_in_sync_ids
            named = f"replica {ids[0]} of {broker} is"
            if len(ids) > 1:
                named = f"replicas {', '.join(map(str, ids))} of {broker} are"
            raise UsageError(
                f"{named} in sync and alive: elect without --unclean, which loses nothing"
            )
        logs = await ask_logs(admin, found)
        chosen = choose(logs, broker_id)
        # Where the state is refused, any replica may have been in sync.
        all_ids = [one.broker_id for one in found.replicas if one.broker_id is not None]
        in_sync = all_ids if found.refusal else found.in_sync_ids
        return found, chosen, expect_loss(chosen, logs, in_sync)

    found, chosen, loss = controlling.run(plan)
    for line in loss_lines(broker, chosen, loss, found.refusal):
        print_stderr(line) if as_json else output.print_line(line)
    confirm(
        f"Elect replica {chosen.broker_id} of {broker}? Continue",
        "acknowledged messages that the replica lacks are lost",
        yes=yes,
    )

    async def change(admin: AdminClient) -> Elected:
        return await admin.elect_master(
            found.controllers,
            cluster="",
            broker_name=broker,
            broker_id=chosen.broker_id,
            unclean=True,
        )

    epoch = controlling.run(change).epoch
    row = _row(broker, chosen.broker_id, chosen.address, epoch)
    print_master(row | {"end": chosen.end, "loss": asdict(loss)}, as_json=as_json)


def _row(
    broker: str, broker_id: int | None, address: str | None, epoch: int | None
) -> dict[str, object]:
    return {"broker": broker, "id": broker_id, "address": address, "epoch": epoch}


async def ask_logs(admin: AdminClient, found: ControlledSet) -> list[LogState]:
    """Return the logs of the replicas: by their answers, or else by their last heartbeats."""

    async def ask(broker_id: int, address: str) -> LogState | None:
        try:
            cache = await admin.broker_epochs(address)
        except KourouError:
            replica = found.replica(broker_id)
            if replica is None or replica.max_offset is None or replica.max_offset < 0:
                return None
            epoch = -1 if replica.epoch is None else replica.epoch
            end = replica.max_offset
            return LogState(
                broker_id=broker_id, address=address, epoch=epoch, end=end, answers=False
            )
        epochs = cache.epoch_list
        return LogState(
            broker_id=broker_id,
            address=address,
            epoch=epochs[-1].epoch if epochs else -1,
            end=cache.max_offset,
            epochs=epochs,
        )

    asked = [
        ask(one.broker_id, one.broker_address or "")
        for one in found.replicas
        if one.broker_id is not None
    ]
    return [one for one in await asyncio.gather(*asked) if one is not None]


def choose(logs: Sequence[LogState], broker_id: int | None) -> LogState:
    """Return the replica to elect uncleanly: that with the id, or else that with the best log.

    Raises:
        UsageError: it does not answer, or none does.
    """
    living = [one for one in logs if one.answers and broker_id in (None, one.broker_id)]
    if not living:
        named = (
            "no replica answers" if broker_id is None else f"replica {broker_id} does not answer"
        )
        raise UsageError(f"{named}: start it first; only a replica that runs can become master")
    return max(living, key=lambda one: (one.epoch, one.end, -one.broker_id))


def expect_loss(chosen: LogState, logs: Sequence[LogState], in_sync: Sequence[int]) -> Loss:
    """Return what is lost if a replica becomes master.

    Args:
        chosen: the replica.
        logs: those that are known.
        in_sync: ids of the in-sync set, which had all acknowledged messages.
    """
    best = max(logs, key=lambda one: (one.epoch, one.end))
    known = {one.broker_id for one in logs}
    unknown = {id_ for id_ in in_sync if id_ not in known}
    if chosen.epoch < best.epoch and not best.epochs:
        unknown.add(best.broker_id)
    common = chosen.end
    if chosen.epoch < best.epoch:
        later = [entry.start_offset for entry in best.epochs if entry.epoch > chosen.epoch]
        common = min([chosen.end, *later])
    lost = max(0, best.end - common)
    return Loss(bytes=lost, known_end=best.end, unknown=tuple(sorted(unknown)))


def loss_lines(broker: str, chosen: LogState, loss: Loss, refusal: str = "") -> list[str]:
    """Return what an unclean election means, for people."""
    lines = [
        f"Refused by the controllers: {refusal}."
        if refusal
        else f"No replica in sync of {broker} is alive.",
        f"Replica {chosen.broker_id} ({chosen.address}) has the log up to {chosen.end:,}, of epoch "
        + str(chosen.epoch),
    ]
    if loss.bytes:
        lines.append(
            f"At least {output.counted(loss.bytes, 'byte')} of the log are lost: the longest one "
            f"known ends at {loss.known_end:,}."
        )
    if loss.unknown:
        ids = ", ".join(map(str, loss.unknown))
        lines.append(
            f"The log of replica {ids} is not known well enough: more acknowledged messages may be "
            "lost. It is truncated when it returns."
        )
    elif not loss.bytes:
        lines.append("No log is longer by the last heartbeats: nothing is known to be lost.")
    return lines


def best_in_sync(found: ControlledSet, broker: str, broker_id: int | None) -> int:
    """Return the member of the in-sync set to elect without loss.

    Raises:
        UsageError: there is none that is alive, or it is not in sync.
    """
    master = None if found.master is None else found.master.broker_id
    living = found.live_in_sync_ids
    if broker_id is not None:
        if broker_id in living:
            return broker_id
        raise UsageError(
            f"replica {broker_id} of {broker} is not in sync and alive; those that are: "
            f"{', '.join(map(str, living)) or 'none'}"
        )
    others = [id_ for id_ in living if id_ != master]
    if not others:
        remedy = "wait until one is" if living else "start one of them, or see --unclean"
        raise UsageError(f"no other replica of {broker} is in sync and alive: {remedy}")

    def rank(id_: int) -> tuple[int, int, int]:
        replica = found.replica(id_)
        assert replica is not None, "it is registered"
        return replica.epoch or 0, replica.max_offset or 0, -id_

    return max(others, key=rank)

"""`kourou cluster move`: moves the master of a set to another replica, and removes the old one.

    join     wait until the replica at the new place is registered, alive and in sync
    drain    if another set accepts sends: the master refuses them, so that producers send there;
             wait until the replica has all of the log
    elect    the replica becomes master
    serve    wait until clients find it, and restore the permission of the old broker
    leave    with --remove: wait until the old broker was stopped, and remove it from the set

Nothing acknowledged depends on the drain: the replica has it when it is in sync. Without a drain, a
send that the old master has not acknowledged is sent again, and may be stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from kourou.cli import output
from kourou.cli.controlled_sets import ControlledSet, Controlling, find_set, print_master
from kourou.cli.exits import print_stderr
from kourou.client.administration.admin import AdminClient
from kourou.errors import (
    KourouError,
    RemoteError,
    RequestTimeoutError,
    UsageError,
    WaitEndedError,
)
from kourou.model.route import MASTER_ID
from kourou.protocol.codes import ResponseCode
from kourou.protocol.controller.headers import ReplicaIdentity
from kourou.remoting.network import parse_address

MOVE_HELP: Final = """\
Move the master of a set to another replica, without losing a message.

\b
1. Start a replica at the new place: `kourou serve` with the same
   brokerName, controllerAddr and an empty store. It joins the set.
2. Run this command. It waits until the replica is in sync, lets producers
   send to other sets meanwhile (if there are any), makes the replica
   master, and waits until clients find it.
3. With --remove, stop the old broker: the command waits for that, and
   removes it from the set.

It is also how a master is restarted or upgraded: move its role to another
replica first, and restart it as a slave (docs/cluster.md).

\b
Examples:
  kourou cluster move broker-a --to 10.0.0.4:10911
  kourou cluster move broker-a --to 10.0.0.4 --remove --wait 3600
  kourou cluster move broker-a --id 2 --dir ./cluster

Exit codes: 0 moved, or master already, 1 a server refused, 2 wrong option, 3 no server answers, or
not within --wait.
"""

PERMISSION: Final = "brokerPermission"
_READ_ONLY: Final = "4"
_READ_WRITE: Final = "6"
_PAUSE_S: Final = 0.1
_DRAIN_S: Final = 5.0
_SERVE_S: Final = 30.0

Tell = Callable[[str], None]
"""Called with a line of progress."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The replica that is to be master: one of the two is given.

    Attributes:
        place: `host:port`, or a host with one replica of the set.
        broker_id: its id.
    """

    place: str | None = None
    broker_id: int | None = None

    def __str__(self) -> str:
        return f"replica {self.broker_id}" if self.place is None else f"replica at {self.place}"

    def check(self) -> None:
        """Refuse a place that no broker can have.

        Raises:
            UsageError: it is neither a host nor `host:port`.
        """
        if self.place is not None:
            parse_address(self.place, default_port=0)

    def find(self, found: ControlledSet) -> ReplicaIdentity | None:
        """Return the replica; None if it is not registered.

        Raises:
            UsageError: several replicas are on the host.
        """
        if self.place is None:
            return found.replica(self.broker_id)
        matching = [one for one in found.replicas if self._is_at(one.broker_address or "")]
        if len(matching) > 1:
            addresses = ", ".join(one.broker_address or "" for one in matching)
            raise UsageError(f"{self.place} has several replicas: name one of {addresses}")
        return matching[0] if matching else None

    def _is_at(self, address: str) -> bool:
        return self.place in (address, address.rpartition(":")[0])


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Result of a move.

    Attributes:
        id, address, epoch: of the master.
        old: address of the old master; None if it was this replica, or there was none.
        is_drained: whether the old master had refused sends before.
        is_removed: whether the old one was removed from the set.
    """

    broker: str
    id: int
    address: str
    epoch: int
    old: str | None = None
    is_drained: bool = False
    is_removed: bool = False


def move(
    broker: str,
    target: Target,
    controlling: Controlling,
    *,
    wait_s: float,
    remove: bool,
    as_json: bool,
) -> None:
    """Move the master of a set, and print the result."""
    if (target.place is None) == (target.broker_id is None):
        raise UsageError("name the new master: either --to HOST[:PORT] or --id N")
    target.check()
    tell = print_stderr if as_json else output.print_line

    async def act(admin: AdminClient) -> Moved:
        moving = Moving(admin, broker, controlling.controllers, tell)
        return await moving.run(target, wait_s=wait_s, remove=remove)

    moved = controlling.run(act, 2 * wait_s + _DRAIN_S + 2 * _SERVE_S)
    print_master(asdict(moved), as_json=as_json)


class Moving:
    """One move."""

    def __init__(self, admin: AdminClient, broker: str, controllers: str, tell: Tell) -> None:
        """Prepare a move.

        Args:
            admin: sends the requests.
            broker: the broker name.
            controllers: the controllers; empty: those of the registered brokers.
            tell: called with the progress.
        """
        self._admin = admin
        self._broker = broker
        self._controllers = controllers
        self._tell = tell
        self._told = ""
        self._permission: str | None = None  # of the master that was drained

    async def run(self, target: Target, *, wait_s: float, remove: bool) -> Moved:
        """Move the master; return when clients find the new one, and the old one is removed.

        Args:
            target: the new master.
            wait_s: the longest wait for it to be in sync, and for the old one to be stopped.
            remove: remove the old one from the set.

        Raises:
            RequestTimeoutError: a wait was too long; repeat the move.
            RemoteError: a server refused.
        """
        # Once, so that a wrong name ends the command at once.
        known = await find_set(self._admin, self._broker, self._controllers)
        if known.refusal:  # it lasts until an operator ends it
            raise RemoteError(ResponseCode.CONTROLLER_INVALID_REQUEST, known.refusal)
        self._controllers = known.controllers
        found, replica = await self._joined(target, wait_s)
        assert found.info is not None, "it has a replica"
        assert replica.broker_id is not None, "the replica is registered"
        address, old = replica.broker_address or "", found.master
        moved = Moved(
            broker=self._broker,
            id=replica.broker_id,
            address=address,
            epoch=found.info.master_epoch or 0,
        )
        if old is not None and old.broker_id == replica.broker_id:
            return moved
        old_address = "" if old is None else old.broker_address or ""
        try:
            if old_address:
                await self._drain(old_address, address)
            elected = await self._admin.elect_master(
                found.controllers, cluster="", broker_name=self._broker, broker_id=replica.broker_id
            )
            await self._until(
                lambda: self._serves(address), _SERVE_S, f"{address} to serve as master"
            )
        finally:  # also of a move that Ctrl-C ends
            if self._permission is not None:
                await self._restore(old_address, self._permission)
        is_removed = remove and old is not None and await self._leave(found, old, wait_s)
        return replace(
            moved,
            epoch=elected.epoch,
            old=old_address or None,
            is_drained=self._permission is not None,
            is_removed=is_removed,
        )

    async def _joined(self, target: Target, wait_s: float) -> tuple[ControlledSet, ReplicaIdentity]:
        """Wait until the target is in sync and alive."""
        result: list[tuple[ControlledSet, ReplicaIdentity]] = []

        async def is_joined() -> bool:
            found = await find_set(self._admin, self._broker, self._controllers)
            replica = target.find(found)
            if found.refusal:
                self._tell_once(f"the controllers refuse the set: {found.refusal}")
            elif replica is None:
                self._tell_once(f"no {target} is registered yet: start it")
            elif replica.broker_id not in found.live_in_sync_ids:
                state = "in sync" if replica.alive else "alive"
                lag = await self._lag(found, replica.broker_address or "")
                self._tell_once(f"{target} is not {state} yet{lag}")
            else:
                result.append((found, replica))
            return bool(result)

        await self._until(is_joined, wait_s, f"{target} to be in sync")
        return result[0]

    async def _lag(self, found: ControlledSet, address: str) -> str:
        """Return what a replica still has to copy, for people; empty if that is not known."""
        master = "" if found.master is None else found.master.broker_address or ""
        with suppress(KourouError):
            ends = await asyncio.gather(*map(self._log_end, (master, address)))
            return f": {output.counted(max(0, ends[0] - ends[1]), 'byte')} to copy"
        return ""

    async def _log_end(self, address: str) -> int:
        status = await self._admin.ha_status(address)
        slave = status.ha_client_runtime_info
        return status.master_commit_log_max_offset if status.master else slave.max_offset

    async def _drain(self, master: str, replica: str) -> None:
        """Let producers send to other sets, and wait until a replica has the whole log.

        Nothing is done if there is no other set that accepts sends.
        """
        brokers = (await self._admin.cluster_info()).brokers
        others = [
            name
            for name, data in brokers.items()
            if name != self._broker and MASTER_ID in data.broker_addrs
        ]
        if not others:
            self._tell("no other set accepts sends: producers retry until the new master serves")
            return
        permission = (await self._admin.broker_config(master)).get(PERMISSION, _READ_WRITE)
        if permission == _READ_ONLY:
            self._tell(
                f"{master} refused sends already ({PERMISSION}={_READ_ONLY}), as after an "
                "interrupted move; it gets its permission back"
            )
            permission = _READ_WRITE
        else:
            self._tell(f"{master} refuses sends now; producers send to {', '.join(sorted(others))}")
        self._permission = permission
        await self._admin.update_broker_config(master, {PERMISSION: _READ_ONLY})

        async def has_all() -> bool:
            end = await self._log_end(master)
            return await self._log_end(replica) >= end

        with suppress(RequestTimeoutError):  # what consumers write may keep the log growing
            await self._until(has_all, _DRAIN_S, f"{replica} to have the whole log")

    async def _serves(self, address: str) -> bool:
        """Return whether a broker is master, for the controllers and for clients."""
        found = await find_set(self._admin, self._broker, self._controllers)
        if found.master is None or found.master.broker_address != address:
            return False
        brokers = (await self._admin.cluster_info()).brokers
        route = brokers[self._broker].broker_addrs if self._broker in brokers else {}
        return route.get(MASTER_ID) == address

    async def _restore(self, address: str, permission: str) -> None:
        """Restore the permission of a broker, which may be changing its role."""

        async def is_restored() -> bool:
            await self._admin.update_broker_config(address, {PERMISSION: permission})
            return True

        try:
            await self._until(is_restored, _SERVE_S, f"{address} to answer")
        except KourouError as error:
            print_stderr(f"warning: {PERMISSION} of {address} is not restored: {error}")

    async def _leave(self, found: ControlledSet, old: ReplicaIdentity, wait_s: float) -> bool:
        """Wait until the old broker was stopped, and remove it."""
        assert old.broker_id is not None, "it is registered"
        self._tell(f"stop the broker at {old.broker_address} now: it is removed when it is down")

        async def is_down() -> bool:
            now = await find_set(self._admin, self._broker, self._controllers)
            replica = now.replica(old.broker_id)
            return replica is None or not (replica.alive or old.broker_id in now.in_sync_ids)

        await self._until(is_down, wait_s, f"{old.broker_address} to be stopped")
        await self._admin.remove_replicas(
            found.controllers, cluster="", broker_name=self._broker, broker_ids=[old.broker_id]
        )
        return True

    async def _until(
        self, is_reached: Callable[[], Awaitable[bool]], limit_s: float, wanted: str
    ) -> None:
        """Wait for a state; servers that do not answer meanwhile are asked again.

        Raises:
            RequestTimeoutError: it was not reached; the cause is the last failure.
            UsageError: the question is wrong.
        """
        deadline_s = asyncio.get_running_loop().time() + limit_s
        failure: KourouError | None = None
        while True:
            try:
                if await is_reached():
                    return
                failure = None
            except UsageError:
                raise
            except KourouError as error:
                failure = error
            if asyncio.get_running_loop().time() >= deadline_s:
                raise WaitEndedError(f"waited {limit_s:g} s for {wanted}") from failure
            await asyncio.sleep(_PAUSE_S)

    def _tell_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)

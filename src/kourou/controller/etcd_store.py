"""State of several controllers, in etcd: one key for each broker set, one lease for the leader.

    PREFIX/cluster       identity of this state, and the longest lease ever confirmed
    PREFIX/sets/NAME     one broker set; its version is the key's modification revision
    PREFIX/leader        the leading controller, attached to its etcd lease
    PREFIX/members/ID    a running controller, attached to its etcd lease

A controller leads while it has created PREFIX/leader and its lease lives. Each write is one
transaction that compares the creation and the lease of that key, and the version of the set.
Heartbeats of brokers are never written.

This controller counts its lease from before each renewal left, and takes a tenth less than etcd
does, so that it stops leading before etcd lets another one lead.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.controller.broker_set import BrokerSet, decode_broker_set, encode_broker_set
from kourou.controller.etcd_gateway import Etcd, Json
from kourou.controller.state_store import Member, Stored, Term, WriteResult
from kourou.errors import (
    ControllerStateError,
    EtcdError,
    MalformedBodyError,
    NotLeadingError,
    WriteInDoubtError,
)
from kourou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
"""Interval between looks for a free leadership, and between renewals that failed."""
_RENEWALS: Final = 4
"""Renewals of the lease within its time."""
_RESIGNED_MS: Final = 10_000
"""How long a controller that has resigned leaves the leadership to others."""
_PAGE: Final = 500
"""Broker sets read by one request."""


class _Cluster(NamedTuple):
    """Identity of a state, and the longest lease of a master that was confirmed with it."""

    identity: str
    lease_ms: int


class EtcdStore:
    """State in etcd; see `StateStore`.

    Args:
        etcd: calls etcd.
        prefix: of all keys.
        ttl_s: the time of the etcd lease.
        lease_ms: the longest lease of a master that this controller confirms.
        now_ms: a clock that advances also while the machine is suspended.

    Attributes:
        problem: why etcd cannot be used now; None while it can.
    """

    def __init__(
        self, etcd: Etcd, prefix: str, *, ttl_s: int, lease_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._etcd = etcd
        self._prefix = "/" + prefix.strip("/")
        self._ttl_s = ttl_s
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._identity: str | None = None
        self._lease_id = ""
        self._lease_ends_ms = 0
        self._leader_revision = ""
        self._resigned_until_ms = 0
        self._deposed = asyncio.Event()
        self._renewals: asyncio.Task[None] | None = None
        self._leader: Member | None = None
        self._members: list[Member] = []
        self.problem: str | None = None

    # Leadership

    async def campaign(self, member: Member) -> Term:
        while True:
            try:
                term = await self._try_campaign(member)
            except EtcdError as error:
                self._report(error)
                term = None
            except ControllerStateError:
                await self.close()  # another controller may have the right state
                raise
            if term is not None:
                return term
            await asyncio.sleep(_POLL_S)

    async def _try_campaign(self, member: Member) -> Term | None:
        """Return the state if this controller leads now."""
        if not self._lease_id:
            await self._begin_lease(member)
        self._members = await self._read_members()
        key = self._key("leader")
        found = await self._range(key)
        # The member too: an etcd that was restored may have assigned the lease's id twice.
        if found and (found[0].get("lease") != self._lease_id or _member(found[0]) != member):
            self._leader = _member(found[0])
            self.problem = None
            return None
        self.problem = None
        if self._now_ms() < self._resigned_until_ms:
            if found:
                await self._delete_leader(found[0]["create_revision"])
            return None
        if found:  # created by an earlier attempt, whose answer was lost or that could not go on
            return await self._begin_term(member, found[0]["create_revision"])
        answer = await self._etcd.call(
            "kv/txn",
            {
                "compare": [_created(key, "0")],
                "success": [_put(key, _encode(member), self._lease_id)],
            },
        )
        if not answer.get("succeeded"):
            return None
        return await self._begin_term(member, answer["header"]["revision"])

    async def _delete_leader(self, revision: str) -> None:
        """Delete the leader key that has this create revision."""
        key = self._key("leader")
        request = {"compare": [_created(key, revision)], "success": [_delete(key)]}
        await self._etcd.call("kv/txn", request)

    async def _begin_term(self, member: Member, revision: str) -> Term | None:
        self._leader_revision = revision
        self._leader = member
        self._deposed.clear()
        term = await self._read_term()
        return term if self.leads() else None

    async def _begin_lease(self, member: Member) -> None:
        if self._renewals is not None:
            self._renewals.cancel()
        sent_at_ms = self._now_ms()
        answer = await self._etcd.call("lease/grant", {"TTL": str(self._ttl_s)})
        self._lease_id = answer["ID"]
        self._extend_lease(sent_at_ms, answer)
        key = self._key(f"members/{member.member_id}")
        await self._etcd.call("kv/put", _put(key, _encode(member), self._lease_id)["request_put"])
        self._renewals = asyncio.create_task(self._renew(), name="renew the etcd lease")

    async def _renew(self) -> None:
        """Renew the lease until etcd has ended it."""
        while True:
            await asyncio.sleep(self._ttl_s / _RENEWALS)
            sent_at_ms = self._now_ms()
            try:
                answer = await self._etcd.call("lease/keepalive", {"ID": self._lease_id})
                if not int(answer.get("result", {}).get("TTL", "0")):
                    break
                if not await self._has_key():
                    self._depose()
            except EtcdError as error:
                self._report(error)
                continue
            self._extend_lease(sent_at_ms, answer["result"])
            if self._leader_revision:
                self.problem = None
        self._depose()
        self._lease_id = ""

    async def _has_key(self) -> bool:
        """Return whether the leader key is that of this controller, or it has none.

        An etcd that was restored may know the lease but not the key, which another one creates.
        """
        leader = self._leader_revision, self._lease_id
        found = await self._range(self._key("leader"))
        is_other = not found or _leadership(found[0]) != leader
        return not (is_other and leader[0] and leader[0] == self._leader_revision)

    def _extend_lease(self, sent_at_ms: int, answer: Json) -> None:
        self._lease_ends_ms = sent_at_ms + int(answer["TTL"]) * 900

    def _depose(self) -> None:
        self._leader_revision = ""
        self._leader = None
        self._deposed.set()

    def leads(self) -> bool:
        return bool(self._leader_revision) and self._now_ms() < self._lease_ends_ms

    async def wait_deposed(self) -> None:
        await self._deposed.wait()

    async def resign(self) -> bool:
        if not self.leads() or len(await self.members()) < 2:
            return False
        # It answers nothing from now on; the key is deleted before the next attempt to lead.
        self._resigned_until_ms = self._now_ms() + _RESIGNED_MS
        self._depose()
        return True

    async def leader(self) -> Member | None:
        return self._leader

    async def members(self) -> list[Member]:
        try:
            self._members = await self._read_members()
        except EtcdError as error:
            self._report(error)
        return self._members

    async def close(self) -> None:
        if self._renewals is not None:
            self._renewals.cancel()
        lease_id, self._lease_id = self._lease_id, ""
        self._depose()
        if lease_id:
            try:
                await self._etcd.call("lease/revoke", {"ID": lease_id})
            except EtcdError as error:
                self._report(error)

    # The state

    async def _read_term(self) -> Term:
        """Return the whole state; verify that it is the one that this process has known.

        Raises:
            ControllerStateError: it is not, or a part of it is missing or damaged.
        """
        sets: dict[str, Stored] = {}
        start = begin = self._key("sets/")
        while True:
            page = await self._range(start, _end_of(begin), limit=_PAGE)
            for one in page:
                stored = _stored(one)
                sets[stored.broker_set.broker_name] = stored
            if len(page) < _PAGE:
                break
            start = _text(page[-1]["key"]) + "\0"
        found = await self._range(self._key("cluster"))
        cluster = _cluster(found[0]) if found else None
        self._check_identity(cluster, sets)
        known = cluster or _Cluster(uuid.uuid4().hex, 0)
        lease_ms = max(self._lease_ms, known.lease_ms)
        if lease_ms > known.lease_ms:
            value = json.dumps({"id": known.identity, "leaseMs": lease_ms}).encode()
            change = _put(self._key("cluster"), value)
            answer = await self._etcd.call(
                "kv/txn", {"compare": self._still_leads(), "success": [change]}
            )
            if not answer.get("succeeded"):
                raise EtcdError("another controller leads already")
        self._identity = known.identity
        return Term(sets, lease_ms)

    def _check_identity(self, cluster: _Cluster | None, sets: dict[str, Stored]) -> None:
        key = self._key("cluster")
        if cluster is None and sets:
            raise ControllerStateError(
                f"etcd has broker sets, but not the key {key}: a part of the state was removed. "
                "Restore the newest state, or use the right prefix"
            )
        if self._identity is not None and (cluster is None or cluster.identity != self._identity):
            found = "nothing" if cluster is None else f"the state {cluster.identity}"
            raise ControllerStateError(
                f"this controller has used the state {self._identity}, and etcd has {found} below "
                f"{self._prefix}: it was emptied, or is another cluster's. Restore the newest "
                "state, or use the right prefix, and restart the controllers"
            )

    async def write(self, name: str, broker_set: BrokerSet | None, version: int) -> WriteResult:
        if not self.leads():
            raise NotLeadingError(ResponseCode.CONTROLLER_NOT_LEADER, "not the leading controller")
        key = self._key(f"sets/{name}")
        change = _delete(key) if broker_set is None else _put(key, encode_broker_set(broker_set))
        modified = {"target": "MOD", "key": _b64(key), "mod_revision": str(version)}
        request = {
            "compare": [*self._still_leads(), {"result": "EQUAL", **modified}],
            "success": [change],
            "failure": [
                {"request_range": {"key": _b64(self._key("leader"))}},
                {"request_range": {"key": _b64(key)}},
            ],
        }
        leader = self._leader_revision, self._lease_id
        try:
            answer = await self._etcd.call("kv/txn", request)
        except EtcdError as error:
            self._report(error)
            raise WriteInDoubtError(str(error)) from error
        if answer.get("succeeded"):
            if broker_set is None:
                return WriteResult(is_written=True, stored=None)
            return WriteResult(
                is_written=True, stored=Stored(broker_set, int(answer["header"]["revision"]))
            )
        found_leader, found = (one["response_range"].get("kvs", []) for one in answer["responses"])
        if not found_leader or _leadership(found_leader[0]) != leader:
            self._depose()
            raise NotLeadingError(ResponseCode.CONTROLLER_NOT_LEADER, "another controller leads")
        return WriteResult(is_written=False, stored=_stored(found[0]) if found else None)

    def _still_leads(self) -> list[Json]:
        """Return the comparisons of which one fails when another controller leads.

        An etcd that was restored may give the key of another controller the same revision.
        """
        key = self._key("leader")
        lease = {"target": "LEASE", "result": "EQUAL", "key": _b64(key), "lease": self._lease_id}
        return [_created(key, self._leader_revision), lease]

    # Calls

    async def _range(self, key: str, end: str | None = None, *, limit: int = 0) -> list[Json]:
        body = {"key": _b64(key), "limit": str(limit)}
        if end is not None:
            body["range_end"] = _b64(end)
        found: list[Json] = (await self._etcd.call("kv/range", body)).get("kvs", [])
        return found

    async def _read_members(self) -> list[Member]:
        begin = self._key("members/")
        return [_member(one) for one in await self._range(begin, _end_of(begin))]

    def _report(self, error: EtcdError) -> None:
        if self.problem is None:
            log.warning("etcd.failed reason=%s", error)
        self.problem = str(error)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _b64(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return base64.b64encode(data).decode()


def _text(value: str) -> str:
    return base64.b64decode(value).decode()


def _end_of(prefix: str) -> str:
    """Return the end of the range of all keys with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _put(key: str, value: bytes, lease_id: str = "0") -> dict[str, Json]:
    return {"request_put": {"key": _b64(key), "value": _b64(value), "lease": lease_id}}


def _delete(key: str) -> dict[str, Json]:
    return {"request_delete_range": {"key": _b64(key)}}


def _created(key: str, revision: str) -> Json:
    """Return the comparison with the revision that created the key; "0" if it must not exist."""
    return {
        "target": "CREATE", "result": "EQUAL", "key": _b64(key), "create_revision": revision,
    }  # fmt: skip


def _leadership(found: Json) -> tuple[str, str | None]:
    """Return the revision that created a leader key, and its lease."""
    return found["create_revision"], found.get("lease")


def _encode(member: Member) -> bytes:
    return json.dumps({"id": member.member_id, "address": member.address}).encode()


def _member(found: Json) -> Member:
    """Return the controller of a key.

    Raises:
        EtcdError: the value is not a controller's.
    """
    try:
        value = json.loads(base64.b64decode(found["value"]))
        return Member(str(value["id"]), str(value["address"]))
    except (KeyError, TypeError, ValueError) as error:
        raise EtcdError(f"the etcd key {_text(found['key'])} is damaged: {error}") from None


def _cluster(found: Json) -> _Cluster:
    """Return the identity of the state.

    Raises:
        ControllerStateError: it is damaged.
    """
    try:
        value = json.loads(base64.b64decode(found["value"]))
        return _Cluster(str(value["id"]), int(value["leaseMs"]))
    except (KeyError, TypeError, ValueError) as error:
        key = _text(found["key"])
        raise ControllerStateError(f"the etcd key {key} is damaged: {error}") from None


def _stored(found: Json) -> Stored:
    """Return the broker set of a key.

    Raises:
        ControllerStateError: it is damaged.
    """
    try:
        broker_set = decode_broker_set(base64.b64decode(found["value"]))
    except MalformedBodyError as error:
        key = _text(found["key"])
        raise ControllerStateError(f"the etcd key {key} is damaged: {error}") from None
    return Stored(broker_set, int(found["mod_revision"]))

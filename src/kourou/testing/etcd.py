"""A simulated etcd in memory: transactions, revisions, leases, backups, faults.

It implements the methods that controllers call, with the JSON of etcd's gateway; other methods
raise. `tests/contracts/test_controller_state.py` holds it to the real etcd.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kourou.controller.etcd_gateway import Json
from kourou.errors import EtcdError

_NOT_FOUND = "etcd refused: etcdserver: requested lease not found"


@dataclass
class _Key:
    value: str
    created: int
    modified: int
    lease: str


@dataclass
class _Lease:
    ttl_s: int
    ends_at_s: float


@dataclass
class _Data:
    revision: int = 1
    keys: dict[bytes, _Key] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)


class SimulatedEtcd:
    """One etcd cluster that never splits.

    Args:
        now_s: the clock of leases.

    Attributes:
        is_down: calls raise, and change nothing.
        write_count: number of changes so far.
        last_lease: id of the last lease. No id is assigned twice, also not after a restore.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._data = _Data()
        self._lost_answers: list[bool] = []
        self.last_lease = 100
        self.is_down = False
        self.write_count = 0

    def lose_answer(self, *, is_served: bool) -> None:
        """Let the next transaction raise, after it was served or instead of it."""
        self._lost_answers.append(is_served)

    def backup(self) -> Any:  # noqa: ANN401 - only for `restore`
        """Return a copy of all data."""
        return copy.deepcopy(self._data)

    def restore(self, backup: Any = None) -> None:  # noqa: ANN401
        """Replace all data by a backup; without one, by nothing."""
        self._data = _Data() if backup is None else copy.deepcopy(backup)

    def stored(self, key: str) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        found = self._data.keys.get(key.encode())
        return None if found is None else base64.b64decode(found.value)

    async def call(self, method: str, body: Json) -> Json:
        """Serve a call; see `kourou.controller.etcd_gateway.Etcd`."""
        if self.is_down:
            raise EtcdError("the simulated etcd is down")
        self._expire()
        is_lost = method == "kv/txn" and bool(self._lost_answers)
        if is_lost and not self._lost_answers.pop(0):
            raise EtcdError("the simulated etcd did not get the request")
        answer = _METHODS[method](self, body)
        if is_lost:
            raise EtcdError("the answer of the simulated etcd was lost")
        return {"header": {"revision": str(self._data.revision)}, **answer}

    def _expire(self) -> None:
        ended = [id_ for id_, one in self._data.leases.items() if one.ends_at_s <= self._now_s()]
        for lease_id in ended:
            self._end_lease(lease_id)

    def _end_lease(self, lease_id: str) -> None:
        del self._data.leases[lease_id]
        keys = [key for key, one in self._data.keys.items() if one.lease == lease_id]
        for key in keys:
            del self._data.keys[key]
        self._data.revision += bool(keys)

    def _grant(self, body: Json) -> Json:
        self.last_lease += 1
        lease_id, ttl_s = str(self.last_lease), int(body["TTL"])
        self._data.leases[lease_id] = _Lease(ttl_s, self._now_s() + ttl_s)
        return {"ID": lease_id, "TTL": str(ttl_s)}

    def _keep_alive(self, body: Json) -> Json:
        lease = self._data.leases.get(body["ID"])
        if lease is None:
            return {"result": {"ID": body["ID"]}}
        lease.ends_at_s = self._now_s() + lease.ttl_s
        return {"result": {"ID": body["ID"], "TTL": str(lease.ttl_s)}}

    def _revoke(self, body: Json) -> Json:
        if body["ID"] not in self._data.leases:
            raise EtcdError(_NOT_FOUND)
        self._end_lease(body["ID"])
        return {}

    def _range(self, body: Json) -> Json:
        key = base64.b64decode(body["key"])
        end = base64.b64decode(body["range_end"]) if "range_end" in body else key + b"\0"
        names = sorted(name for name in self._data.keys if key <= name < end)
        limit = int(body.get("limit", "0")) or len(names)
        found = [self._shown(name) for name in names[:limit]]
        return {"kvs": found, "count": str(len(names))} if found else {}

    def _shown(self, name: bytes) -> Json:
        one = self._data.keys[name]
        shown = {
            "key": base64.b64encode(name).decode(),
            "create_revision": str(one.created),
            "mod_revision": str(one.modified),
            "value": one.value,
        }
        return shown if one.lease == "0" else shown | {"lease": one.lease}

    def _put(self, body: Json) -> Json:
        self._check_leases([body])
        self._data.revision += 1
        self._apply_put(body)
        return {}

    def _apply_put(self, body: Json) -> None:
        self.write_count += 1
        key, revision = base64.b64decode(body["key"]), self._data.revision
        existing = self._data.keys.get(key)
        created = revision if existing is None else existing.created
        self._data.keys[key] = _Key(body["value"], created, revision, body.get("lease", "0"))

    def _check_leases(self, puts: list[Json]) -> None:
        for put in puts:
            if put.get("lease", "0") != "0" and put["lease"] not in self._data.leases:
                raise EtcdError(_NOT_FOUND)

    def _transact(self, body: Json) -> Json:
        is_equal = all(self._compare(one) for one in body.get("compare", []))
        operations = body.get("success" if is_equal else "failure", [])
        self._check_leases([one["request_put"] for one in operations if "request_put" in one])
        self._data.revision += any("request_range" not in one for one in operations)
        responses: list[Json] = []
        for operation in operations:
            if "request_put" in operation:
                self._apply_put(operation["request_put"])
                responses.append({"response_put": {}})
            elif "request_delete_range" in operation:
                self.write_count += 1
                key = base64.b64decode(operation["request_delete_range"]["key"])
                self._data.keys.pop(key, None)
                responses.append({"response_delete_range": {}})
            else:
                responses.append({"response_range": self._range(operation["request_range"])})
        answer: dict[str, Any] = {"responses": responses} if responses else {}
        return answer | ({"succeeded": True} if is_equal else {})

    def _compare(self, body: Json) -> bool:
        one = self._data.keys.get(base64.b64decode(body["key"]))
        if body["target"] == "CREATE":
            return int(body["create_revision"]) == (0 if one is None else one.created)
        if body["target"] == "LEASE":  # etcd compares the one of a key that does not exist as 0
            return str(body["lease"]) == ("0" if one is None else one.lease)
        return int(body["mod_revision"]) == (0 if one is None else one.modified)


_METHODS: dict[str, Callable[[SimulatedEtcd, Json], Json]] = {
    "kv/range": SimulatedEtcd._range,  # noqa: SLF001 - its own table
    "kv/put": SimulatedEtcd._put,  # noqa: SLF001
    "kv/txn": SimulatedEtcd._transact,  # noqa: SLF001
    "lease/grant": SimulatedEtcd._grant,  # noqa: SLF001
    "lease/keepalive": SimulatedEtcd._keep_alive,  # noqa: SLF001
    "lease/revoke": SimulatedEtcd._revoke,  # noqa: SLF001
}

"""The simulated etcd, as far as `tests/contracts/test_controller_state.py` cannot show it."""

from __future__ import annotations

import asyncio

from kourou.testing.etcd import SimulatedEtcd


def test_no_lease_has_an_id_from_before_a_restore() -> None:
    """Two controllers would otherwise lead by the same lease."""

    async def main() -> None:
        etcd = SimulatedEtcd(lambda: 0.0)
        backup = etcd.backup()
        before = await etcd.call("lease/grant", {"TTL": "2"})
        etcd.restore(backup)
        after = await etcd.call("lease/grant", {"TTL": "2"})
        assert before["ID"] != after["ID"]

    asyncio.run(main())

"""Administration of consumer groups: create, change and describe."""

from __future__ import annotations

import pytest

from kourou.client.administration.admin_groups import create_group
from kourou.errors import GroupNotFoundError, NoRouteError
from kourou.model.group import SubscriptionGroup
from kourou.protocol.groups import decode_subscription_group
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import recording


def test_group_is_created_with_all_settings_on_the_given_brokers() -> None:
    group = SubscriptionGroup(
        "billing",
        consume_enable=False,
        consume_from_min_enable=False,
        consume_broadcast_enable=False,
        consume_message_orderly=True,
        retry_queue_nums=2,
        retry_max_times=5,
        group_retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 60_000}},
        which_broker_when_consume_slowly=3,
        notify_consumer_ids_changed_enable=False,
        consume_timeout_minute=7,
    )

    async def main() -> None:
        async with Cluster(seed=2, brokers=2) as cluster, cluster.admin() as admin:
            await admin.create_group(group, broker_name="broker-1")
            assert await admin.group_config("billing") == {"broker-1": group}
            await admin.create_group(group, cluster="DefaultCluster")
            assert list(await admin.group_config("billing")) == ["broker-0", "broker-1"]
            with pytest.raises(NoRouteError, match="broker-7"):
                await admin.create_group(group, broker_name="broker-7")

    run_virtual(main())


def test_update_keeps_the_other_settings_of_each_broker() -> None:
    async def main() -> None:
        async with Cluster(seed=2, brokers=2) as cluster, cluster.admin() as admin:
            for name, times in (("broker-0", 3), ("broker-1", 4)):
                group = SubscriptionGroup("billing", retry_max_times=times)
                await admin.create_group(group, broker_name=name)
            await admin.update_group("billing", consume_enable=False)
            found = await admin.group_config("billing")
            assert {
                name: (one.consume_enable, one.retry_max_times) for name, one in found.items()
            } == {"broker-0": (False, 3), "broker-1": (False, 4)}
            await admin.update_group("billing", broker_name="broker-1", retry_max_times=9)
            found = await admin.group_config("billing")
            assert [one.retry_max_times for one in found.values()] == [3, 9]
            await admin.update_group("billing", attributes={"priority.factor": "20"})
            await admin.update_group("billing", consume_enable=True)
            found = await admin.group_config("billing")
            assert [one.attributes for one in found.values()] == [{"priority.factor": "20"}] * 2

    run_virtual(main())


def test_describing_a_group_does_not_create_it() -> None:
    async def main() -> None:
        async with Cluster(seed=2) as cluster, cluster.admin() as admin:
            for ask in (admin.group_config, admin.describe_group, admin.update_group):
                with pytest.raises(GroupNotFoundError, match="no broker has the group absent"):
                    await ask("absent")
            assert "absent" not in [one.group_name for one in await admin.group_list()]

    run_virtual(main())


def test_all_groups_are_described() -> None:
    async def main() -> None:
        async with recording(queues=1, brokers=2) as w, w.cluster.admin() as admin:
            await admin.create_group(SubscriptionGroup("idle"), broker_name="broker-1")
            async with w.consumer() as consumer:
                await w.send(b"1")
                await w.until_received(b"1")
                every = {one.group: one for one in await admin.describe_groups()}
                assert every["consumers"].members == (consumer.client_id,)
                assert every["idle"].offsets == {}
            assert list(every) == sorted(every)
            named = await admin.describe_groups(["idle", "absent"])
            assert [one.group for one in named] == ["idle"]

    run_virtual(main())


def test_attributes_are_sent_as_changes() -> None:
    sent: list[SubscriptionGroup] = []

    class Server:
        async def request_body(self, code: int, body: bytes) -> bytes:
            assert code == 200
            sent.append(decode_subscription_group(body))
            return b""

    async def main() -> None:
        group = SubscriptionGroup("g", attributes={"priority.factor": "2"})
        await create_group(Server(), group)  # type: ignore[arg-type]  # all that is asked of one

    run_virtual(main())
    assert sent[0].attributes == {"+priority.factor": "2"}

"""The blocking administration client."""

from __future__ import annotations

from kourou.blocking.background import Blocking, waits
from kourou.client.admin import AdminClient as AsyncAdminClient
from kourou.client.config import AdminConfig
from kourou.remoting.runtime import Runtime


class AdminClient(Blocking[AsyncAdminClient]):
    """Asks and changes a cluster, as `kourou.AdminClient`."""

    def __init__(
        self,
        namesrv_addr: str,
        *,
        config: AdminConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(lambda: AsyncAdminClient(namesrv_addr, config=config, runtime=runtime))

    cluster_info = waits(AsyncAdminClient.cluster_info)
    topic_list = waits(AsyncAdminClient.topic_list)
    topic_route = waits(AsyncAdminClient.topic_route)
    create_topic = waits(AsyncAdminClient.create_topic)
    delete_topic = waits(AsyncAdminClient.delete_topic)
    topic_config = waits(AsyncAdminClient.topic_config)
    topic_stats = waits(AsyncAdminClient.topic_stats)
    group_list = waits(AsyncAdminClient.group_list)
    describe_group = waits(AsyncAdminClient.describe_group)
    create_group = waits(AsyncAdminClient.create_group)
    describe_groups = waits(AsyncAdminClient.describe_groups)
    group_config = waits(AsyncAdminClient.group_config)
    update_group = waits(AsyncAdminClient.update_group)
    delete_group = waits(AsyncAdminClient.delete_group)
    consume_stats = waits(AsyncAdminClient.consume_stats)
    reset_offset = waits(AsyncAdminClient.reset_offset)
    skip_backlog = waits(AsyncAdminClient.skip_backlog)
    clone_offsets = waits(AsyncAdminClient.clone_offsets)
    consumer_connection = waits(AsyncAdminClient.consumer_connection)
    running_info = waits(AsyncAdminClient.running_info)
    consume_directly = waits(AsyncAdminClient.consume_directly)
    producer_connection = waits(AsyncAdminClient.producer_connection)
    producers = waits(AsyncAdminClient.producers)
    runtime_info = waits(AsyncAdminClient.runtime_info)
    broker_config = waits(AsyncAdminClient.broker_config)
    update_broker_config = waits(AsyncAdminClient.update_broker_config)
    broker_stats = waits(AsyncAdminClient.broker_stats)
    broker_consume_stats = waits(AsyncAdminClient.broker_consume_stats)
    all_stats = waits(AsyncAdminClient.all_stats)

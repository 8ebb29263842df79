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
    delete_group = waits(AsyncAdminClient.delete_group)
    runtime_info = waits(AsyncAdminClient.runtime_info)

"""The blocking administration client."""

from __future__ import annotations

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import Blocking, waits
from kourou.client.administration.admin import AdminClient as AsyncAdminClient
from kourou.client.config import AdminConfig
from kourou.remoting.runtime import Runtime


class AdminClient(Blocking[AsyncAdminClient]):
    """Administers a cluster: the blocking form of `kourou.AdminClient`."""

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        credentials: AnyCredentials | None = None,
        config: AdminConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            lambda: AsyncAdminClient(
                namesrv_addr, credentials=credentials, config=config, runtime=runtime
            )
        )

    # Topics
    create_topic = waits(AsyncAdminClient.create_topic)
    delete_topic = waits(AsyncAdminClient.delete_topic)
    topic_config = waits(AsyncAdminClient.topic_config)
    topic_groups = waits(AsyncAdminClient.topic_groups)
    topic_list = waits(AsyncAdminClient.topic_list)
    topic_stats = waits(AsyncAdminClient.topic_stats)
    update_topic = waits(AsyncAdminClient.update_topic)

    # Groups
    create_group = waits(AsyncAdminClient.create_group)
    delete_group = waits(AsyncAdminClient.delete_group)
    describe_group = waits(AsyncAdminClient.describe_group)
    describe_groups = waits(AsyncAdminClient.describe_groups)
    group_config = waits(AsyncAdminClient.group_config)
    group_list = waits(AsyncAdminClient.group_list)
    request_modes = waits(AsyncAdminClient.request_modes)
    set_request_mode = waits(AsyncAdminClient.set_request_mode)
    update_group = waits(AsyncAdminClient.update_group)

    # Offsets
    clone_offsets = waits(AsyncAdminClient.clone_offsets)
    consume_stats = waits(AsyncAdminClient.consume_stats)
    reset_offset = waits(AsyncAdminClient.reset_offset)
    skip_backlog = waits(AsyncAdminClient.skip_backlog)

    # Messages
    message_at = waits(AsyncAdminClient.message_at)
    message_by_id = waits(AsyncAdminClient.message_by_id)
    message_trace = waits(AsyncAdminClient.message_trace)
    message_by_unique_key = waits(AsyncAdminClient.message_by_unique_key)
    messages_by_key = waits(AsyncAdminClient.messages_by_key)
    messages_by_tag = waits(AsyncAdminClient.messages_by_tag)
    messages_by_unique_key = waits(AsyncAdminClient.messages_by_unique_key)

    # Dead letters
    dead_letters = waits(AsyncAdminClient.dead_letters)
    redrive = waits(AsyncAdminClient.redrive)
    redrive_all = waits(AsyncAdminClient.redrive_all)

    # Clients
    consume_directly = waits(AsyncAdminClient.consume_directly)
    consumer_connection = waits(AsyncAdminClient.consumer_connection)
    producer_connection = waits(AsyncAdminClient.producer_connection)
    producers = waits(AsyncAdminClient.producers)
    running_info = waits(AsyncAdminClient.running_info)

    # Brokers
    all_stats = waits(AsyncAdminClient.all_stats)
    broker_config = waits(AsyncAdminClient.broker_config)
    broker_consume_stats = waits(AsyncAdminClient.broker_consume_stats)
    broker_stats = waits(AsyncAdminClient.broker_stats)
    runtime_info = waits(AsyncAdminClient.runtime_info)
    update_broker_config = waits(AsyncAdminClient.update_broker_config)

    # Name servers
    add_write_perm = waits(AsyncAdminClient.add_write_perm)
    kv_delete = waits(AsyncAdminClient.kv_delete)
    kv_get = waits(AsyncAdminClient.kv_get)
    kv_list = waits(AsyncAdminClient.kv_list)
    kv_put = waits(AsyncAdminClient.kv_put)
    namesrv_config = waits(AsyncAdminClient.namesrv_config)
    update_namesrv_config = waits(AsyncAdminClient.update_namesrv_config)
    wipe_write_perm = waits(AsyncAdminClient.wipe_write_perm)

    # Cluster
    cluster_info = waits(AsyncAdminClient.cluster_info)
    topic_route = waits(AsyncAdminClient.topic_route)

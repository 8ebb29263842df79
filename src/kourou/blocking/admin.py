"""The blocking administration client."""

from __future__ import annotations

from kourou.auth.credentials import AnyCredentials
from kourou.blocking.background import Blocking, blocking_method
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
    create_topic = blocking_method(AsyncAdminClient.create_topic)
    delete_topic = blocking_method(AsyncAdminClient.delete_topic)
    topic_config = blocking_method(AsyncAdminClient.topic_config)
    topic_groups = blocking_method(AsyncAdminClient.topic_groups)
    topic_list = blocking_method(AsyncAdminClient.topic_list)
    topic_stats = blocking_method(AsyncAdminClient.topic_stats)
    update_topic = blocking_method(AsyncAdminClient.update_topic)

    # Groups
    create_group = blocking_method(AsyncAdminClient.create_group)
    delete_group = blocking_method(AsyncAdminClient.delete_group)
    describe_group = blocking_method(AsyncAdminClient.describe_group)
    describe_groups = blocking_method(AsyncAdminClient.describe_groups)
    group_config = blocking_method(AsyncAdminClient.group_config)
    group_list = blocking_method(AsyncAdminClient.group_list)
    group_pops = blocking_method(AsyncAdminClient.group_pops)
    request_modes = blocking_method(AsyncAdminClient.request_modes)
    set_request_mode = blocking_method(AsyncAdminClient.set_request_mode)
    update_group = blocking_method(AsyncAdminClient.update_group)

    # Offsets
    clone_offsets = blocking_method(AsyncAdminClient.clone_offsets)
    consume_stats = blocking_method(AsyncAdminClient.consume_stats)
    reset_offset = blocking_method(AsyncAdminClient.reset_offset)
    skip_backlog = blocking_method(AsyncAdminClient.skip_backlog)

    # Messages
    explain_message = blocking_method(AsyncAdminClient.explain_message)
    explain_missing = blocking_method(AsyncAdminClient.explain_missing)
    message_at = blocking_method(AsyncAdminClient.message_at)
    message_by_id = blocking_method(AsyncAdminClient.message_by_id)
    message_trace = blocking_method(AsyncAdminClient.message_trace)
    message_by_unique_key = blocking_method(AsyncAdminClient.message_by_unique_key)
    messages_by_key = blocking_method(AsyncAdminClient.messages_by_key)
    messages_by_tag = blocking_method(AsyncAdminClient.messages_by_tag)
    messages_by_unique_key = blocking_method(AsyncAdminClient.messages_by_unique_key)

    # Dead letters
    dead_letters = blocking_method(AsyncAdminClient.dead_letters)
    redrive = blocking_method(AsyncAdminClient.redrive)
    redrive_all = blocking_method(AsyncAdminClient.redrive_all)
    redriven_offsets = blocking_method(AsyncAdminClient.redriven_offsets)

    # Clients
    consume_directly = blocking_method(AsyncAdminClient.consume_directly)
    consumer_connection = blocking_method(AsyncAdminClient.consumer_connection)
    producer_connection = blocking_method(AsyncAdminClient.producer_connection)
    producers = blocking_method(AsyncAdminClient.producers)
    running_info = blocking_method(AsyncAdminClient.running_info)

    # Brokers
    all_stats = blocking_method(AsyncAdminClient.all_stats)
    broker_config = blocking_method(AsyncAdminClient.broker_config)
    broker_consume_stats = blocking_method(AsyncAdminClient.broker_consume_stats)
    broker_stats = blocking_method(AsyncAdminClient.broker_stats)
    ha_status = blocking_method(AsyncAdminClient.ha_status)
    runtime_info = blocking_method(AsyncAdminClient.runtime_info)
    update_broker_config = blocking_method(AsyncAdminClient.update_broker_config)

    # Controllers
    broker_epochs = blocking_method(AsyncAdminClient.broker_epochs)
    broker_sets = blocking_method(AsyncAdminClient.broker_sets)
    controller_leader = blocking_method(AsyncAdminClient.controller_leader)
    elect_master = blocking_method(AsyncAdminClient.elect_master)
    remove_replicas = blocking_method(AsyncAdminClient.remove_replicas)
    update_controller_config = blocking_method(AsyncAdminClient.update_controller_config)

    # Name servers
    add_write_perm = blocking_method(AsyncAdminClient.add_write_perm)
    kv_delete = blocking_method(AsyncAdminClient.kv_delete)
    kv_get = blocking_method(AsyncAdminClient.kv_get)
    kv_list = blocking_method(AsyncAdminClient.kv_list)
    kv_put = blocking_method(AsyncAdminClient.kv_put)
    namesrv_config = blocking_method(AsyncAdminClient.namesrv_config)
    update_namesrv_config = blocking_method(AsyncAdminClient.update_namesrv_config)
    wipe_write_perm = blocking_method(AsyncAdminClient.wipe_write_perm)

    # Cluster
    cluster_info = blocking_method(AsyncAdminClient.cluster_info)
    topic_route = blocking_method(AsyncAdminClient.topic_route)

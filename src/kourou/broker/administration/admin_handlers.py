"""Table of the administrators' requests on groups, clients, offsets and queues, and their handlers.

The handlers are built from the broker's components here and not in `wiring.py`. Requests on topics,
statistics and configuration have modules and handlers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.broker.administration.admin_clients import ClientAdminHandlers
from kourou.broker.administration.admin_groups import GroupAdminHandlers
from kourou.broker.administration.admin_offsets import OffsetAdminHandlers
from kourou.broker.administration.admin_progress import ProgressHandlers
from kourou.broker.administration.admin_store import StoreAdminHandlers
from kourou.broker.administration.topic_deletion import TopicDeletion
from kourou.broker.client_calls import ClientCalls
from kourou.broker.components import Components
from kourou.protocol.codes import RequestCode
from kourou.remoting.dispatch import Handler
from kourou.remoting.steady_time import steady_ms


@dataclass(frozen=True)
class AdminHandlers:
    """The handlers, by subject."""

    groups: GroupAdminHandlers
    clients: ClientAdminHandlers
    progress: ProgressHandlers
    offsets: OffsetAdminHandlers
    calls: ClientCalls
    store: StoreAdminHandlers

    def table(self) -> dict[int, Handler]:
        """Return request code -> handler."""
        return self._of_groups() | self._of_clients() | self._of_offsets()

    def _of_groups(self) -> dict[int, Handler]:
        groups, progress = self.groups, self.progress
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
                groups.on_update_and_create_subscription_group
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
                groups.on_update_and_create_subscription_group_list
            ),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.on_delete_subscription_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.on_get_subscription_group_config,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
                groups.on_get_all_subscription_group_config
            ),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.on_update_and_get_group_forbidden,
            RequestCode.GET_CONSUME_STATS: progress.on_get_consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: progress.on_get_broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: progress.on_query_consume_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: progress.on_query_correction_offset,
        }

    def _of_clients(self) -> dict[int, Handler]:
        clients, calls = self.clients, self.calls
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.on_get_consumer_connection_list,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.on_get_producer_connection_list,
            RequestCode.GET_ALL_PRODUCER_INFO: clients.on_get_all_producer_info,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: clients.on_query_topic_consume_by_who,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: clients.on_query_topics_by_consumer,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: clients.on_query_subscription_by_consumer,
            RequestCode.GET_CONSUMER_RUNNING_INFO: calls.on_get_consumer_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: calls.on_consume_message_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (
                calls.on_invoke_broker_to_get_consumer_status
            ),
        }

    def _of_offsets(self) -> dict[int, Handler]:
        offsets, store = self.offsets, self.store
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.on_invoke_broker_to_reset_offset,
            RequestCode.CLONE_GROUP_OFFSET: offsets.on_clone_group_offset,
            RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.on_get_all_consumer_offset,
            RequestCode.GET_ALL_DELAY_OFFSET: offsets.on_get_all_delay_offset,
            RequestCode.QUERY_CONSUME_QUEUE: store.on_query_consume_queue,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: store.on_clean_expired_consume_queue,
            RequestCode.POP_ROLLBACK: store.on_pop_rollback,
            RequestCode.CLEAN_UNUSED_TOPIC: store.on_clean_unused_topic,
            RequestCode.DELETE_EXPIRED_COMMITLOG: store.on_delete_expired_commitlog,
        }


def build_admin_handlers(components: Components, deletion: TopicDeletion) -> AdminHandlers:
    """Build the handlers of a broker; `deletion` deletes its topics."""
    context, tables = components.context, components.tables
    calls = ClientCalls(context)

    def on_reset(group: str, topic: str, queue_id: int) -> None:
        components.held_pulls.on_offset_reset(group, topic, queue_id)
        components.popping.on_offset_reset(group, topic, queue_id)

    return AdminHandlers(
        groups=GroupAdminHandlers(context, tables.offsets, tables.order_infos, deletion),
        clients=ClientAdminHandlers(context, tables.offsets, components.popping.filters),
        progress=ProgressHandlers(
            context,
            tables.offsets,
            components.popping.invisible,
            lambda group, queue: components.queue_locks.holder(group, queue, steady_ms()),
        ),
        offsets=OffsetAdminHandlers(
            context,
            offsets=tables.offsets,
            delay_offsets=components.delay.table,
            locks=tables.locks.ages,
            calls=calls,
            on_reset=on_reset,
        ),
        calls=calls,
        store=StoreAdminHandlers(
            context,
            tables.filters,
            components.queue_deletion,
            components.retention,
            components.popping.invisible,
        ),
    )

"""Table of request codes and their handlers.

A request with a code that is missing here is answered with REQUEST_CODE_NOT_SUPPORTED (3). Features
that are not built yet are missing.

A slave refuses what only its master may do, because only that may change the log:

    sends, sent-back messages                                     2, as busy: clients try the
                                                                  master; 14 if it may act for it
    pulls without `slaveReadEnable`, unless it acts for it        2
    ends of transactions, recalls                                 11
    pops and their acknowledgements, unless it acts for it        14

Source: SendMessageProcessor.rejectRequest, PullMessageProcessor.rejectRequest,
EndTransactionProcessor, RecallMessageProcessor, apache/rocketmq 5.5.0. Java serves pops on a slave
as far as that needs no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kourou.broker.administration.admin_handlers import AdminHandlers
from kourou.broker.administration.admin_topics import TopicAdminHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.administration.replica_handlers import ReplicaHandlers
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.client_handlers import ClientHandlers
from kourou.broker.consuming.assignment_handlers import AssignmentHandlers
from kourou.broker.consuming.lock_handlers import LockHandlers
from kourou.broker.consuming.offset_handlers import OffsetHandlers
from kourou.broker.consuming.retry import SendBackHandler
from kourou.broker.popping.popping import Popping
from kourou.broker.pulling.pull import PullHandler
from kourou.broker.pulling.query import MessageQueryHandler, QueryHandlers
from kourou.broker.sending.reply import ReplyHandler
from kourou.broker.sending.send import SendHandlers
from kourou.broker.timer.timer_handlers import TimerHandlers
from kourou.broker.transactions.transactions import Transactions
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler

SLAVE_UNREADABLE: Final = (
    "[REJECTREQUEST]system busy, start flow control for a while: the broker is a slave, and "
    "slaveReadEnable is off"
)
"""Refusal of a pull."""
_BUSY: Final = "[REJECTREQUEST]system busy, start flow control for a while: "
_STORING: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_READS: Final = (*_PULLS, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID)
_ENDS: Final = (RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE)
_CHANGES: Final = (
    *_STORING,
    *_ENDS,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.POP_ROLLBACK,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
)
"""Requests that change what a master has, and whose answers promise that."""


@dataclass(frozen=True)
class Handlers:
    """The handlers of all requests."""

    sends: SendHandlers
    replies: ReplyHandler
    send_backs: SendBackHandler
    stats: StatsHandlers
    replicas: ReplicaHandlers
    configs: ConfigHandlers
    pulls: PullHandler
    clients: ClientHandlers
    assignments: AssignmentHandlers
    locks: LockHandlers
    offsets: OffsetHandlers
    queries: QueryHandlers
    messages: MessageQueryHandler
    topics: TopicAdminHandlers
    transactions: Transactions
    timers: TimerHandlers
    popping: Popping
    admin: AdminHandlers

    def table(self) -> dict[int, Handler]:
        """Return request code -> handler."""
        topics = self.topics
        return (
            self.admin.table()
            | self.transactions.handlers()
            | self.timers.table()
            | self.popping.handlers()
            | self.replicas.table()
            | {
                RequestCode.SEND_MESSAGE: self.sends.on_send_message,
                RequestCode.SEND_MESSAGE_V2: self.sends.on_send_message,
                RequestCode.SEND_BATCH_MESSAGE: self.sends.on_send_message,
                RequestCode.SEND_REPLY_MESSAGE: self.replies.on_send_reply_message,
                RequestCode.SEND_REPLY_MESSAGE_V2: self.replies.on_send_reply_message,
                RequestCode.CONSUMER_SEND_MSG_BACK: self.send_backs.on_consumer_send_msg_back,
                RequestCode.PULL_MESSAGE: self.pulls.on_pull_message,
                RequestCode.LITE_PULL_MESSAGE: self.pulls.on_pull_message,
                RequestCode.HEART_BEAT: self.clients.on_heartbeat,
                RequestCode.UNREGISTER_CLIENT: self.clients.on_unregister_client,
                RequestCode.CHECK_CLIENT_CONFIG: self.clients.on_check_client_config,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.clients.on_get_consumer_list_by_group,
                RequestCode.LOCK_BATCH_MQ: self.locks.on_lock_batch_mq,
                RequestCode.UNLOCK_BATCH_MQ: self.locks.on_unlock_batch_mq,
                RequestCode.QUERY_ASSIGNMENT: self.assignments.on_query_assignment,
                RequestCode.SET_MESSAGE_REQUEST_MODE: self.assignments.on_set_message_request_mode,
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: (
                    self.assignments.on_get_all_message_request_mode
                ),
                RequestCode.QUERY_CONSUMER_OFFSET: self.offsets.on_query_consumer_offset,
                RequestCode.UPDATE_CONSUMER_OFFSET: self.offsets.on_update_consumer_offset,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.queries.on_search_offset_by_timestamp,
                RequestCode.GET_MAX_OFFSET: self.queries.on_get_max_offset,
                RequestCode.GET_MIN_OFFSET: self.queries.on_get_min_offset,
                RequestCode.GET_EARLIEST_MSG_STORETIME: self.queries.on_get_earliest_msg_storetime,
                RequestCode.VIEW_MESSAGE_BY_ID: self.queries.on_view_message_by_id,
                RequestCode.QUERY_MESSAGE: self.messages.on_query_message,
                RequestCode.UPDATE_BROKER_CONFIG: self.configs.on_update_broker_config,
                RequestCode.GET_BROKER_CONFIG: self.configs.on_get_broker_config,
                RequestCode.GET_BROKER_RUNTIME_INFO: self.stats.on_get_broker_runtime_info,
                RequestCode.VIEW_BROKER_STATS_DATA: self.stats.on_view_broker_stats_data,
                RequestCode.GET_BROKER_HA_STATUS: self.stats.on_get_broker_ha_status,
                RequestCode.UPDATE_AND_CREATE_TOPIC: topics.on_update_and_create_topic,
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.on_update_and_create_topic_list,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.on_get_system_topic_list,
                RequestCode.DELETE_TOPIC_IN_BROKER: topics.on_delete_topic,
                RequestCode.GET_TOPIC_CONFIG: topics.on_get_topic_config,
                RequestCode.GET_ALL_TOPIC_CONFIG: topics.on_get_all_topic_config,
                RequestCode.GET_TOPIC_STATS_INFO: topics.on_get_topic_stats_info,
            }
        )

    def slave_table(
        self, *, may_act: bool, pull_refusal: Callable[[], str], pop_refusal: Callable[[], str]
    ) -> dict[int, Handler]:
        """Return request code -> handler of a slave.

        Args:
            may_act: whether it may act for its master: name servers then show it as one.
            pull_refusal: returns why it serves no pulls now; empty if it does.
            pop_refusal: the same for pops.
        """
        only_master = "the broker is a slave: send the request to its master"
        if may_act:
            storing = _refusal(ResponseCode.SERVICE_NOT_AVAILABLE, only_master)
        else:
            storing = _refusal(ResponseCode.SYSTEM_BUSY, f"{_BUSY}{only_master}")
        refusals: dict[int, Handler] = dict.fromkeys(_STORING, storing)
        refusals |= _guarded(self.table(), _PULLS, ResponseCode.SYSTEM_BUSY, pull_refusal)
        refusals |= dict.fromkeys(_ENDS, _refusal(ResponseCode.SLAVE_NOT_AVAILABLE, only_master))
        pops = self.popping.slave_handlers()

        def refused_pop() -> str:
            reason = pop_refusal()
            return f"{only_master}; {reason}" if reason else ""

        refusals |= _guarded(pops, pops, ResponseCode.SERVICE_NOT_AVAILABLE, refused_pop)
        return self.table() | refusals


def guard_changes(table: dict[int, Handler], reason: Callable[[], str]) -> dict[int, Handler]:
    """Return the handlers of a master that refuses changes while `reason` returns one."""
    return table | _guarded(table, _CHANGES, ResponseCode.SERVICE_NOT_AVAILABLE, reason)


def guard_reads(table: dict[int, Handler], reason: Callable[[], str]) -> dict[int, Handler]:
    """Return the handlers of a slave that shows no messages while `reason` returns one."""
    return table | _guarded(table, _READS, ResponseCode.SYSTEM_BUSY, reason)


def _guarded(
    table: dict[int, Handler],
    codes: Iterable[int],
    refusal: ResponseCode,
    reason: Callable[[], str],
) -> dict[int, Handler]:
    def guard(handler: Handler) -> Handler:
        def serve(request: Request) -> RemotingCommand | None:
            text = reason()
            return response(request.command, refusal, text) if text else handler(request)

        return serve

    return {code: guard(table[code]) for code in codes}


def _refusal(code: ResponseCode, text: str) -> Handler:
    def refuse(request: Request) -> RemotingCommand:
        return response(request.command, code, text)

    return refuse

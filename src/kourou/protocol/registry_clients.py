"""Specifications of the requests for sending and consuming, served by brokers or clients."""

from __future__ import annotations

from typing import Final

from kourou.protocol import bodies, bodies_locks, bodies_pop
from kourou.protocol import bodies_lite as lite_bodies
from kourou.protocol import headers_admin_clients as clients
from kourou.protocol import headers_admin_offsets as offsets
from kourou.protocol import headers_consume as consume
from kourou.protocol import headers_lite as lite
from kourou.protocol import headers_pop as pop
from kourou.protocol import headers_send as send
from kourou.protocol import headers_transaction as transaction
from kourou.protocol.codes import RequestCode
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.message_batch import decode_batch, encode_batch
from kourou.protocol.message_decoding import decode_message, decode_messages
from kourou.protocol.registry_specs import BodyCodec, RequestSpec, record_codec

_KIB: Final = 1024
_MESSAGE_BYTES_MAX: Final = FRAME_SIZE_MAX
"""Limit of user-defined bodies, which are not decoded here: brokers and clients have options for
their size."""

_BATCH: Final = BodyCodec(decode_batch, encode_batch)
_MESSAGE: Final = BodyCodec(decode_message)
_MESSAGES: Final = BodyCodec(decode_messages)
_HEARTBEAT: Final = BodyCodec(bodies.decode_heartbeat, bodies.encode_heartbeat)
_CONSUMER_LIST: Final = BodyCodec(bodies.decode_consumer_list, bodies.encode_consumer_list)
_CLIENT_CONFIG: Final = BodyCodec(
    bodies.decode_check_client_config, bodies.encode_check_client_config
)
_RUNNING_INFO: Final = BodyCodec(
    bodies.decode_consumer_running_info, bodies.encode_consumer_running_info
)
_CONSUME_RESULT: Final = BodyCodec(
    bodies.decode_consume_directly_result, bodies.encode_consume_directly_result
)
_RESET: Final = BodyCodec(bodies.decode_reset_offsets, bodies.encode_reset_offsets)
_STATUS: Final = BodyCodec(bodies.decode_consumer_status, bodies.encode_consumer_status)

SENDING: Final = (
    RequestSpec(
        RequestCode.SEND_MESSAGE,
        send.SendMessageRequestHeader,
        send.SendMessageResponseHeader,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_MESSAGE_V2,
        send.SendMessageRequestHeaderV2,
        send.SendMessageResponseHeader,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_BATCH_MESSAGE,
        send.SendMessageRequestHeaderV2,
        send.SendMessageResponseHeader,
        request_body=_BATCH,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_REPLY_MESSAGE,
        send.SendMessageRequestHeader,
        send.SendMessageResponseHeader,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        send.SendMessageRequestHeaderV2,
        send.SendMessageResponseHeader,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        send.ReplyMessageRequestHeader,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(RequestCode.CONSUMER_SEND_MSG_BACK, send.ConsumerSendMsgBackRequestHeader),
    RequestSpec(
        RequestCode.RECALL_MESSAGE,
        send.RecallMessageRequestHeader,
        send.RecallMessageResponseHeader,
    ),
    RequestSpec(RequestCode.END_TRANSACTION, transaction.EndTransactionRequestHeader),
    RequestSpec(
        RequestCode.CHECK_TRANSACTION_STATE,
        transaction.CheckTransactionStateRequestHeader,
        request_body=_MESSAGE,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, transaction.ResumeCheckHalfMessageRequestHeader
    ),
)

CONSUMING: Final = (
    RequestSpec(
        RequestCode.PULL_MESSAGE,
        consume.PullMessageRequestHeader,
        consume.PullMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(
        RequestCode.LITE_PULL_MESSAGE,
        consume.PullMessageRequestHeader,
        consume.PullMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(
        RequestCode.QUERY_MESSAGE,
        consume.QueryMessageRequestHeader,
        consume.QueryMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(
        RequestCode.VIEW_MESSAGE_BY_ID, consume.ViewMessageRequestHeader, response_body=_MESSAGE
    ),
    RequestSpec(
        RequestCode.QUERY_CONSUMER_OFFSET,
        consume.QueryConsumerOffsetRequestHeader,
        consume.QueryConsumerOffsetResponseHeader,
    ),
    RequestSpec(RequestCode.UPDATE_CONSUMER_OFFSET, consume.UpdateConsumerOffsetRequestHeader),
    RequestSpec(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        consume.SearchOffsetRequestHeader,
        consume.SearchOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MAX_OFFSET,
        consume.GetMaxOffsetRequestHeader,
        consume.GetMaxOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MIN_OFFSET,
        consume.GetMinOffsetRequestHeader,
        consume.GetMinOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        consume.GetEarliestMsgStoretimeRequestHeader,
        consume.GetEarliestMsgStoretimeResponseHeader,
    ),
    RequestSpec(
        RequestCode.HEART_BEAT,
        consume.HeartbeatRequestHeader,
        consume.HeartbeatResponseHeader,
        request_body=_HEARTBEAT,
        body_bytes_max=192 * _KIB,  # more than a thousand subscriptions
    ),
    RequestSpec(RequestCode.UNREGISTER_CLIENT, consume.UnregisterClientRequestHeader),
    RequestSpec(
        RequestCode.CHECK_CLIENT_CONFIG, request_body=_CLIENT_CONFIG, body_bytes_max=128 * _KIB
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        consume.GetConsumerListByGroupRequestHeader,
        response_body=_CONSUMER_LIST,
    ),
    RequestSpec(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consume.NotifyConsumerIdsChangedRequestHeader
    ),
    RequestSpec(
        RequestCode.LOCK_BATCH_MQ,
        consume.LockBatchMqRequestHeader,
        request_body=record_codec(bodies_locks.LockBatch),
        response_body=record_codec(bodies_locks.LockedQueues),
        body_bytes_max=128 * _KIB,  # about 1,500 queues
    ),
    RequestSpec(
        RequestCode.UNLOCK_BATCH_MQ,
        consume.UnlockBatchMqRequestHeader,
        request_body=record_codec(bodies_locks.LockBatch),
        body_bytes_max=128 * _KIB,
    ),
    RequestSpec(
        RequestCode.QUERY_ASSIGNMENT,
        request_body=record_codec(bodies_locks.QueryAssignment),
        response_body=record_codec(bodies_locks.Assignments),
    ),
    RequestSpec(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        request_body=record_codec(bodies_locks.SetMessageRequestMode),
    ),
    RequestSpec(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        response_body=record_codec(bodies_locks.MessageRequestModes),
    ),
    RequestSpec(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        offsets.ResetOffsetRequestHeader,
        request_body=_RESET,
        body_bytes_max=1024 * _KIB,  # a broker sends the offsets of all queues of a topic
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        offsets.GetConsumerStatusRequestHeader,
        response_body=_STATUS,
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        clients.GetConsumerRunningInfoRequestHeader,
        response_body=_RUNNING_INFO,
    ),
    RequestSpec(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        clients.ConsumeMessageDirectlyResultRequestHeader,
        request_body=_MESSAGE,
        response_body=_CONSUME_RESULT,
        body_bytes_max=_MESSAGE_BYTES_MAX,
    ),
)

POP: Final = (
    RequestSpec(
        RequestCode.POP_MESSAGE,
        pop.PopMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(
        RequestCode.PEEK_MESSAGE,
        pop.PeekMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(RequestCode.ACK_MESSAGE, pop.AckMessageRequestHeader),
    RequestSpec(
        RequestCode.BATCH_ACK_MESSAGE, request_body=record_codec(bodies_pop.BatchAckMessages)
    ),
    RequestSpec(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        pop.ChangeInvisibleTimeRequestHeader,
        pop.ChangeInvisibleTimeResponseHeader,
    ),
    RequestSpec(
        RequestCode.NOTIFICATION, pop.NotificationRequestHeader, pop.NotificationResponseHeader
    ),
    RequestSpec(
        RequestCode.POLLING_INFO, pop.PollingInfoRequestHeader, pop.PollingInfoResponseHeader
    ),
    RequestSpec(RequestCode.POP_ROLLBACK),
)

LITE: Final = (
    RequestSpec(
        RequestCode.POP_LITE_MESSAGE,
        lite.PopLiteMessageRequestHeader,
        lite.PopLiteMessageResponseHeader,
        response_body=_MESSAGES,
    ),
    RequestSpec(
        RequestCode.LITE_SUBSCRIPTION_CTL,
        lite.LiteSubscriptionCtlRequestHeader,
        request_body=record_codec(lite_bodies.LiteSubscriptionCtl),
    ),
    RequestSpec(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, lite.NotifyUnsubscribeLiteRequestHeader),
    RequestSpec(
        RequestCode.GET_BROKER_LITE_INFO, response_body=record_codec(lite_bodies.BrokerLiteInfo)
    ),
    RequestSpec(
        RequestCode.GET_PARENT_TOPIC_INFO,
        lite.GetParentTopicInfoRequestHeader,
        response_body=record_codec(lite_bodies.ParentTopicInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_TOPIC_INFO,
        lite.GetLiteTopicInfoRequestHeader,
        response_body=record_codec(lite_bodies.LiteTopicInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_CLIENT_INFO,
        lite.GetLiteClientInfoRequestHeader,
        response_body=record_codec(lite_bodies.LiteClientInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_GROUP_INFO,
        lite.GetLiteGroupInfoRequestHeader,
        response_body=record_codec(lite_bodies.LiteGroupInfo),
    ),
    RequestSpec(RequestCode.TRIGGER_LITE_DISPATCH, lite.TriggerLiteDispatchRequestHeader),
)

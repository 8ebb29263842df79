"""AdminClient: the topics, consumer groups, messages, clients and servers of a cluster."""

from __future__ import annotations

from kourou.client.administration.admin_brokers import BrokerAdmin, TopicRates
from kourou.client.administration.admin_clients import ClientAdmin
from kourou.client.administration.admin_controllers import ControllerAdmin, Elected
from kourou.client.administration.admin_dead_letters import DeadLetterAdmin, DeadMessage, Redrive
from kourou.client.administration.admin_explain import ExplainAdmin
from kourou.client.administration.admin_groups import GroupAdmin, GroupDescription
from kourou.client.administration.admin_namesrv import NamesrvAdmin
from kourou.client.administration.admin_offsets import OffsetAdmin, OffsetReset, QueueEnd
from kourou.client.administration.admin_pops import GroupPops, PopAdmin, ReviveLag, TopicMode
from kourou.client.administration.admin_topics import DEFAULT_QUEUES, TopicAdmin
from kourou.client.administration.admin_traces import TraceAdmin, TraceStep
from kourou.client.administration.explanations import DeliveryState, Explanation

__all__ = [
    "DEFAULT_QUEUES",
    "AdminClient",
    "DeadMessage",
    "DeliveryState",
    "Elected",
    "Explanation",
    "GroupDescription",
    "GroupPops",
    "OffsetReset",
    "QueueEnd",
    "Redrive",
    "ReviveLag",
    "TopicMode",
    "TopicRates",
    "TraceStep",
]


class AdminClient(
    TopicAdmin,
    GroupAdmin,
    OffsetAdmin,
    DeadLetterAdmin,
    TraceAdmin,
    ExplainAdmin,
    ClientAdmin,
    BrokerAdmin,
    ControllerAdmin,
    NamesrvAdmin,
    PopAdmin,
):
    """Describes and changes the topics, groups, offsets and servers of a cluster.

    A method that changes something sends a request to each master concerned, one after the other,
    and stops at the first error; repeating the call completes the change. All methods raise
    ClosedError before `start` and after `close`, ConnectFailedError if no name server answers,
    another TransportError if a broker does not answer within `admin_timeout_ms`, and RemoteError if
    a server refuses. A cancelled change may be complete on some servers only.

    Args:
        namesrv_addr: `host:port`, or several joined by `;`. None: the value of the environment
            variable KOUROU_NAMESRV or NAMESRV_ADDR, else 127.0.0.1:9876.
        credentials: sign each request, for clusters that require it: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        runtime: network, clock and randomness, for tests; None: those of the system.

    Raises:
        ConfigError: `namesrv_addr` does not parse.
    """

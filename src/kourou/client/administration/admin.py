"""AdminClient: the topics, consumer groups, messages, clients and servers of a cluster."""

from __future__ import annotations

from kourou.client.administration.admin_brokers import BrokerAdmin, TopicRates
from kourou.client.administration.admin_clients import ClientAdmin
from kourou.client.administration.admin_dead_letters import DeadLetterAdmin, Redrive
from kourou.client.administration.admin_groups import GroupAdmin, GroupDescription
from kourou.client.administration.admin_namesrv import NamesrvAdmin
from kourou.client.administration.admin_offsets import OffsetAdmin, OffsetReset, QueueEnd
from kourou.client.administration.admin_request_modes import RequestModeAdmin
from kourou.client.administration.admin_topics import DEFAULT_QUEUES, TopicAdmin
from kourou.client.administration.admin_traces import TraceAdmin, TraceStep
from kourou.client.administration.dead_letters import DeadMessage

__all__ = [
    "DEFAULT_QUEUES",
    "AdminClient",
    "DeadMessage",
    "GroupDescription",
    "OffsetReset",
    "QueueEnd",
    "Redrive",
    "TopicRates",
    "TraceStep",
]


class AdminClient(
    TopicAdmin,
    GroupAdmin,
    OffsetAdmin,
    RequestModeAdmin,
    DeadLetterAdmin,
    TraceAdmin,
    ClientAdmin,
    BrokerAdmin,
    NamesrvAdmin,
):
    """Describes and changes the topics, groups, offsets and servers of a cluster.

    What changes something asks every master concerned, one after the other, and stops at the first
    that refuses: calling it again completes the rest. All calls raise ClosedError before `start`
    and after `close`, ConnectFailedError when no name server answers, another TransportError when
    a broker does not answer within `admin_timeout_ms`, and RemoteError when one refuses.
    Cancelling leaves some servers asked and others not.

    Args:
        namesrv_addr: `host:port`, or several joined by `;`. None: what the environment's
            KOUROU_NAMESRV or NAMESRV_ADDR names, else 127.0.0.1:9876.
        credentials: sign each request, for clusters that want that: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        runtime: the outside world, for tests; None for the real one.

    Raises:
        ConfigError: `namesrv_addr` does not parse.
    """

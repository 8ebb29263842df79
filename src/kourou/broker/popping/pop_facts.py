"""The facts for verdicts on pops, from the tables of the broker."""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.broker.popping.pop_run import RetryTopics
from kourou.broker.popping.pop_verdicts import PopFacts
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.remoting.connection import Request

_BORN_TIME = "bornTime"


def pop_facts(context: BrokerContext, request: Request, topic: str, group: str) -> PopFacts:
    """Return the state of the broker for a request of a group for a topic."""
    client = request.remote_address
    host = context.store_host or request.connection.local_address
    return PopFacts(
        context.live_config.current,
        host[0],
        context.clock.now_ms(),
        context.topics.get(topic),
        context.groups.find(group, client[0]),
        client,
    )


def retry_topics_of(context: BrokerContext, topic: str, group: str) -> RetryTopics:
    """Return the retry topics of a group for a topic, as far as they exist."""
    topics = context.topics
    older = topics.get(retry_topic_v1(group, topic))
    if not context.live_config.current.pop.enable_retry_topic_v2:
        return RetryTopics(older, None)
    return RetryTopics(topics.get(retry_topic_v2(group, topic)), older)


def set_born_time(request: Request, now_ms: int) -> None:
    """Set the time at which the client sent the request, if it is missing or 0, as Java does."""
    fields = request.command.ext_fields
    if fields.get(_BORN_TIME, "0") == "0":
        fields[_BORN_TIME] = str(now_ms)

"""Metrics of the proxy: its state, and calls by name, language and status."""

from __future__ import annotations

from kourou.metrics import Family, Sample
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from tests.proxy.proxy_rig import GROUP, TOPIC, Rig, with_rig

LABELS = {"node_id": "here"}


def counted(families: list[Family]) -> dict[tuple[str, str, str], float]:
    """Return the counts of calls by name, language and code."""
    [calls] = [family for family in families if family.name == "rocketmq_proxy_calls_total"]
    samples = [sample for sample in calls.samples if isinstance(sample, Sample)]
    assert all(sample.labels["node_id"] == "here" for sample in samples)
    return {
        (sample.labels["name"], sample.labels["language"], sample.labels["code"]): sample.value
        for sample in samples
    }


def test_running_proxy_is_up() -> None:
    up = CallCounts().families(LABELS)[0]
    assert (up.name, up.samples) == ("rocketmq_proxy_up", [Sample(LABELS, 1)])


def test_call_of_an_unknown_language_is_counted() -> None:
    counts = CallCounts()
    counts.add("SendMessage", None, Code.OK)
    counts.add("SendMessage", None, Code.OK)
    assert counted(counts.families(LABELS)) == {("SendMessage", "unknown", "ok"): 2}


def test_calls_are_counted_by_their_status() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        for _ in range(3):
            await producer.send()
        await consumer.receive()
        await consumer.receive()
        asked = v2.QueryRouteRequest(topic=v2.Resource(name="unknown"))
        await producer.grpc.call("QueryRoute", asked)
        nameless = await rig.connect("")
        await nameless.grpc.call("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC)))
        refused = consumer.receiving(invisible_ms=1)
        await refused.rest()
        assert counted(rig.proxy.metrics(LABELS)) == {
            ("QueryRoute", "python", "topic_not_found"): 1,
            ("QueryRoute", "unknown", "client_id_required"): 1,
            ("ReceiveMessage", "python", "illegal_invisible_time"): 1,
            ("ReceiveMessage", "python", "message_not_found"): 1,
            ("ReceiveMessage", "python", "ok"): 1,
            ("SendMessage", "python", "ok"): 3,
            ("Telemetry", "python", "ok"): 2,
        }
        assert rig.registered(GROUP)

    with_rig(test)

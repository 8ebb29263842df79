"""State-machine tests: after any sequence of broker requests, exactly live brokers are routed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.model.topic import TopicConfig
from kourou.namesrv.broker_identity import BrokerIdentity
from kourou.namesrv.routes import RouteTable
from kourou.protocol.data_version import DataVersion
from kourou.protocol.topic_table import TopicConfigTable

TIMEOUT_MS = 120_000
TOPICS = ("T", "U", "V", "W")

broker_names = st.sampled_from(["a", "b", "c"])
topic_sets = st.sets(st.sampled_from(TOPICS), min_size=2)
single_topics = st.sampled_from(TOPICS)


class LoneMasters(RuleBasedStateMachine):
    """Brokers of one address each, against a model: broker name -> (seen at, topics)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(TIMEOUT_MS)
        self.now_ms = 0
        self.version = 0
        self.alive: dict[str, tuple[int, dict[str, int]]] = {}

    def _register(self, name: str, topics: set[str]) -> None:
        self.version += 1
        queue_nums = self.version % 50 + 1
        table = TopicConfigTable(
            {topic: TopicConfig(topic, queue_nums, queue_nums) for topic in sorted(topics)},
            DataVersion(self.version, 0, self.now_ms),
        )
        self.table.register(identity(name), table, name, self.now_ms)
        known = self.alive.get(name, (0, {}))[1]
        self.alive[name] = (self.now_ms, known | dict.fromkeys(topics, queue_nums))

    @rule(name=broker_names, topics=topic_sets)
    def register(self, name: str, topics: set[str]) -> None:
        self._register(name, topics)

    @rule(name=broker_names, topic=single_topics)
    def change_one_topic(self, name: str, topic: str) -> None:
        if name in self.alive:
            self._register(name, {topic})

    @rule(name=broker_names)
    def unregister(self, name: str) -> None:
        self.table.unregister("C", identity(name).address)
        self.alive.pop(name, None)

    @rule(name=broker_names)
    def lose_the_connection(self, name: str) -> None:
        gone = self.table.unregister_connection(name)
        assert [one.broker_name for one in gone] == ([name] if name in self.alive else [])
        self.alive.pop(name, None)

    @rule(name=broker_names)
    def heartbeat(self, name: str) -> None:
        self.table.refresh("C", identity(name).address, self.now_ms)
        if name in self.alive:
            self.alive[name] = (self.now_ms, self.alive[name][1])

    @rule(passed_ms=st.sampled_from([1, 30_000, TIMEOUT_MS, TIMEOUT_MS + 1]))
    def pass_time_and_scan(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        silent = {
            name for name, (seen_ms, _) in self.alive.items() if seen_ms + TIMEOUT_MS < self.now_ms
        }
        assert {one.broker_name for one, _ in self.table.expire(self.now_ms)} == silent
        for name in silent:
            del self.alive[name]

    @rule(topic=single_topics)
    def delete_topic(self, topic: str) -> None:
        self.table.delete_topic(topic)
        for _, topics in self.alive.values():
            topics.pop(topic, None)

    @invariant()
    def what_lives_is_routed_and_nothing_else_is(self) -> None:
        routed = {}
        for topic in TOPICS:
            found = self.table.route(topic)
            if found is not None:
                routed[topic] = {q.broker_name: q.read_queue_nums for q in found.queue_datas}
                assert {broker.broker_name for broker in found.broker_datas} == set(routed[topic])
                assert all(broker.broker_addrs for broker in found.broker_datas)
        expected: dict[str, dict[str, int]] = {}
        for name, (_, topics) in self.alive.items():
            for topic, queue_nums in topics.items():
                expected.setdefault(topic, {})[name] = queue_nums
        assert routed == expected
        assert self.table.queues.topics() == sorted(expected)
        assert self.table.cluster_info().brokers.keys() == self.alive.keys()


class AnyBrokers(RuleBasedStateMachine):
    """Masters and slaves that change names, ids and addresses leave no stale entries."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(TIMEOUT_MS)
        self.now_ms = 0

    @rule(
        name=broker_names,
        cluster=st.sampled_from(["C", "D"]),
        broker_id=st.integers(0, 2),
        port=st.integers(1, 4),
        connection=st.integers(1, 4),
        state=st.integers(0, 2),
        topics=topic_sets,
        acting=st.sampled_from([None, False, True]),
    )
    def register(
        self,
        *,
        name: str,
        cluster: str,
        broker_id: int,
        port: int,
        connection: int,
        state: int,
        topics: set[str],
        acting: bool | None,
    ) -> None:
        identity = BrokerIdentity(
            cluster, name, broker_id, f"h:{port}", enable_acting_master=acting
        )
        configs = {topic: TopicConfig(topic) for topic in sorted(topics)}
        table = TopicConfigTable(configs, DataVersion(self.now_ms, state, 0))
        self.table.register(identity, table, connection, self.now_ms)

    @rule(connection=st.integers(1, 4))
    def lose_a_connection(self, connection: int) -> None:
        self.table.unregister_connection(connection)

    @rule(cluster=st.sampled_from(["C", "D"]), port=st.integers(1, 4))
    def unregister(self, cluster: str, port: int) -> None:
        self.table.unregister(cluster, f"h:{port}")

    @rule(passed_ms=st.sampled_from([1, TIMEOUT_MS // 2]))
    def pass_time_and_scan(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.table.expire(self.now_ms)

    @invariant()
    def each_routed_broker_lives(self) -> None:
        living = {
            (broker.broker_name, broker.broker_id, broker.address)
            for broker in self.table.live_brokers()
        }
        brokers = self.table.cluster_info().brokers
        for name, data in brokers.items():
            assert data.broker_addrs
            for broker_id, address in data.broker_addrs.items():
                assert (name, broker_id, address) in living
        queues = self.table.queues
        entries = {(t, name) for t in queues.topics() for name in queues.of_topic(t)}
        assert {name for _, name in entries} <= brokers.keys()
        assert len(entries) == len(queues)
        assert entries == {(t, name) for name in brokers for t in queues.of_broker(name)}

    def teardown(self) -> None:
        self.table.expire(self.now_ms + 2 * TIMEOUT_MS)
        assert not self.table.queues.topics()
        assert not self.table.cluster_info().brokers
        assert len(self.table.queues) == 0


def identity(name: str) -> BrokerIdentity:
    return BrokerIdentity("C", name, 0, f"{name}:10911")


TestLoneMasters = LoneMasters.TestCase
TestLoneMasters.settings = settings(max_examples=30, deadline=None)
TestAnyBrokers = AnyBrokers.TestCase
TestAnyBrokers.settings = settings(max_examples=30, deadline=None)

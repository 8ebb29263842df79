"""Steps of `mqadmin` commands through the life of a cluster, with the clients in between.

The same steps run against any server, so that their output can be compared. A step is a command
line; `{broker}` and similar fields stand for names and addresses of the server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kourou import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
)
from tests.interop.mqadmin import Mqadmin, Printed

TOPIC = "Orders"
QUEUES = 4
COUNT = 20

# Topics and groups are created; no client uses them yet.
CREATED = (
    "updateTopic -t Orders -c DefaultCluster -r 4 -w 4",
    "updateTopic -t Ordered -b {broker} -o true",
    "updateTopic -t OrderedToo -c DefaultCluster -o true",
    "updateTopic -t Typed -b {broker} -a +message.type=FIFO",
    "updateTopic -t Wrong -b {broker} -a +nonsense=1",
    "updateTopic -t a/b -b {broker}",
    "updateTopicPerm -t Typed -b {broker} -p 4",
    "updateTopicPerm -t Typed -b {broker} -p  4 ",  # again
    "updateTopicPerm -t Typed -c DefaultCluster -p 6",
    "updateTopicList -b {broker} -f {home}/topics.json",
    "updateSubGroup -g billing -c DefaultCluster",
    "updateSubGroup -g offline -b {broker}",
    "updateSubGroup -g cloned -b {broker}",
    "updateSubGroup -g audit -b {broker} -r 3 -q 2 -d true -s true -m false -o true",
    "updateSubGroupList -b {broker} -f {home}/groups.json",
    "getConsumerConfig -g billing",
    "getConsumerConfig -g audit",
    "getConsumerConfig -g nobody",
)
TOPICS = (
    {"topicName": "ListedA", "readQueueNums": 2, "writeQueueNums": 2},
    {"topicName": "ListedB", "readQueueNums": 3, "writeQueueNums": 3, "perm": 4},
)
GROUPS = ({"groupName": "listed-a"}, {"groupName": "listed-b", "retryMaxTimes": 3})

# A producer has sent; a group without members has committed the offset 3 in each queue.
AT_REST = (
    "topicList",
    "topicList -c",
    "topicRoute -t Orders",
    "topicRoute -t Orders -l",
    "topicRoute -t Ordered",
    "topicRoute -t Nothing",
    "topicStatus -t Orders",
    "topicStatus -t Nothing",
    "topicClusterList -t Orders",
    "clusterList",
    "clusterList -m",
    "clusterList -c DefaultCluster",
    "brokerStatus -b {broker}",
    "brokerStatus -c DefaultCluster",
    "haStatus -b {broker}",
    "haStatus -c DefaultCluster",
    "consumerProgress -g offline",
    "consumerProgress -g offline -t Orders",
    "consumerConnection -g offline",
    "resetOffsetByTime -g offline -t Orders -s 2020-01-01#00:00:00:000",
    "consumerProgress -t Orders -g offline",
    "resetOffsetByTime -g offline -t Orders -s now -b {broker} -q 1 -o 2",
    "cloneGroupOffset -s offline -d cloned -t Orders -o false",
    "skipAccumulatedMessage -g offline -t Orders",
    "consumerProgress -g offline  -t Orders",
    "resetOffsetByTime -g offline -t Orders -s now",
    "skipAccumulatedMessage -g nobody -t Orders",
)

# The group `billing` has just consumed all messages; the statistics cover one minute.
COUNTED = (
    "statsAll",
    "statsAll -a -t Orders",
)

# The producer and the group are connected.
LIVE = (
    "consumerConnection -g billing",
    "consumerConnection -g billing -b {broker}",
    "consumerProgress -g billing",
    "consumerProgress -g billing -s true",
    "consumerProgress",
    "consumerStatus -g billing",
    "consumerStatus -g billing -i {client}",
    "producer -b {broker}",
    "producerConnection -g steps-producer -t Orders",
    "producerConnection -g nobody -t Orders",
    "brokerConsumeStats -b {broker}",
    "brokerConsumeStats -b {broker} -o true",
    "brokerConsumeStats -b {broker} -l 1",
    "cloneGroupOffset -s billing -d cloned -t Orders -o false",
    "consumerProgress -g cloned -t Orders",
    "queryMsgById -t Orders -i {offset_id}",
    "queryMsgById -t Orders -i {offset_id} -g billing -d {client}",
    "queryMsgByUniqueKey -t Orders -i {unique_id}",
    "queryMsgByUniqueKey -t Orders -i {unique_id} -a",
    "queryMsgByUniqueKey -t Orders -i 00000000000000000000000000000000",
    "queryMsgByOffset -t Orders -b broker-a -i 1 -o 2",
    "queryMsgByKey -t Orders -k key-5",
    "queryMsgTraceById -i {unique_id}",
    "printMsg -t Orders -d true",
    "printMsg -t Orders -d true -s even",
    "printMsgByQueue -t Orders -a broker-a -i 1 -p true -d true",
    "printMsgByQueue -t Orders -a broker-a -i 1 -p true -f true",
    "queryCq -t Orders -q 1 -i 0 -c 5 -b {broker}",
    "queryCq -t Orders -q 1 -i 0 -c 5 -b {broker} -g billing",
    "consumeMessage -t Orders -b broker-a -i 1 -o 1 -c 2",
    "resetOffsetByTime -g billing -t Orders -s now",
    "skipAccumulatedMessage -g billing -t Orders",
    "allocateMQ -t Orders -i 10.0.0.1,10.0.0.2",
)

# No other client is connected any more.
AFTERWARDS = (
    "sendMessage -t Orders -p hello -k key -c TagA -b broker-a -i 2",
    "checkMsgSendRT -t Orders -a 3 -s 16",
    "sendMsgStatus -b broker-a -s 16 -c 3",
    "topicStatus  -t Orders",
    "getBrokerConfig -b {broker}",
    "getBrokerConfig -c DefaultCluster",
    "updateBrokerConfig -b {broker} -k brokerPermission -v 4",
    "sendMessage -t Orders -p refused -b broker-a -i 2",
    "updateBrokerConfig -b {broker} -k brokerPermission -v 6",
    "updateBrokerConfig -b {broker} -k nonsense -v 6",
    "getNamesrvConfig",
    "updateNamesrvConfig -k orderMessageEnable -v true",
    "updateNamesrvConfig -k kvConfigPath -v /elsewhere",
    "updateKvConfig -s NS -k key -v value",
    "deleteKvConfig -s NS -k key",
    "updateOrderConf -t Orders -m put -v broker-a:4",
    "updateOrderConf -t Orders -m get",
    "topicRoute -t  Orders",
    "updateOrderConf -t Orders -m delete",
    "updateOrderConf -t Orders -m  get",
    "wipeWritePerm -b broker-a",
    "topicRoute  -t Orders",
    "addWritePerm -b broker-a",
    "topicRoute  -t  Orders",
    "exportConfigs -c DefaultCluster -f {home}/export",
    "exportMetadata -c DefaultCluster -f {home}/export",
    "exportMetadata -b {broker} -t -f {home}/export",
    "exportMetadata -b {broker} -g -f {home}/export",
    "exportMetrics -c DefaultCluster -f {home}/export",
    "cleanExpiredCQ -b {broker}",
    "cleanUnusedTopic -b {broker}",
    "deleteExpiredCommitLog -b {broker}",
    "setConsumeMode -t Orders -g billing -m PULL -b {broker}",
    "updateSubGroup -g audit -b {broker} --attributes +lite.bind.topic=Orders",
    "deleteSubGroup -g audit -b {broker}",
    "deleteSubGroup -g billing -c DefaultCluster -r true",
    "getConsumerConfig  -g billing",
    "deleteTopic -t Orders -c DefaultCluster",
    "deleteTopic -t Nothing -c DefaultCluster",
    "topicRoute   -t Orders",
    "topicList ",
)

STEPS = (*CREATED, *AT_REST, *COUNTED, *LIVE, *AFTERWARDS)
"""All steps. A repeated command has additional blanks, so that each step is unique."""
assert len(set(STEPS)) == len(STEPS)

_UNTIL_SECONDS = 60
_CONSUMED = r"%RETRY%billing[^$]*Consume Diff Total: 0\n"
_COUNTED = r"billing +0 +\d+\.\d+ +\d+\.\d+ +20 +20\b"


async def play(namesrv_addr: str, broker_addr: str, home: Path) -> dict[str, Printed]:
    """Run all steps against a new server; return step -> output.

    Args:
        namesrv_addr: address of a name server with one broker, `broker-a` of `DefaultCluster`.
        broker_addr: address of the broker.
        home: directory for files that are read and written.
    """
    (home / "topics.json").write_text(json.dumps(TOPICS))
    (home / "groups.json").write_text(json.dumps(GROUPS))
    known = {"broker": broker_addr, "home": str(home)}
    printed: dict[str, Printed] = {}
    with Mqadmin(namesrv_addr, home) as mqadmin:

        async def take(steps: Sequence[str], **more: str) -> None:
            for step in steps:
                words = _words(step, known | more)
                printed[step] = await asyncio.to_thread(mqadmin.run, *words)

        await take(CREATED)
        async with Producer("steps-producer", namesrv_addr) as producer:
            unique_id, offset_id = await _send(producer)
            await _commit(namesrv_addr)
            await take(AT_REST)
            async with _consumer(namesrv_addr) as consumer:
                await until_printed(mqadmin, "consumerProgress -g billing", _CONSUMED)
                await until_printed(mqadmin, "statsAll -a -t Orders", _COUNTED)
                await take(COUNTED)
                ids = {"unique_id": unique_id, "offset_id": offset_id}
                await take(LIVE, client=consumer.client_id, **ids)
        await take(AFTERWARDS)
    return printed


def _words(step: str, known: Mapping[str, str]) -> list[str]:
    return [word.format_map(known) for word in step.split()]


async def _send(producer: Producer) -> tuple[str, str]:
    """Send all messages, and return both ids of number 5."""
    ids = []
    for number in range(COUNT):
        receipt = await producer.send(
            Message(
                TOPIC,
                b"body-%d" % number,
                tags="even" if number % 2 == 0 else "odd",
                keys=[f"key-{number}"],
                properties={"number": str(number)},
            ),
            queue=MessageQueue(TOPIC, "broker-a", number % QUEUES),
            timeout_ms=15_000,
        )
        ids.append((receipt.msg_id, receipt.offset_msg_id))
    return ids[5]


async def _commit(namesrv_addr: str) -> None:
    async with PullConsumer("offline", namesrv_addr) as consumer:
        for queue in await consumer.fetch_subscribe_message_queues(TOPIC):
            await consumer.commit(queue, 3)


def _consumer(namesrv_addr: str) -> PushConsumer:
    async def listen(_: MessageExt) -> None: ...

    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        instance_name="steps",
        persist_offset_interval_ms=500,
    )
    consumer = PushConsumer("billing", namesrv_addr, config=config)
    consumer.subscribe(TOPIC, tags="even || odd")
    consumer.listen(listen)
    return consumer


async def until_printed(mqadmin: Mqadmin, command: str, pattern: str) -> None:
    """Repeat a command until its output matches."""
    async with asyncio.timeout(_UNTIL_SECONDS):
        while True:
            printed = await asyncio.to_thread(mqadmin.run, *command.split())
            if re.search(pattern, printed.out):
                return
            await asyncio.sleep(0.5)

"""Features of the official Java clients, as programs that check their own results.

Each feature is a class of `java/features`, or of `java/features5` if only release 5 has it. A
process of its client runs several features at a time against a broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kourou import AdminClient
from tests.interop import clients
from tests.interop.clients import CACHE, HERE

RELEASES = ("5.5.0", "4.9.8")

OPTIONS = """
brokerName=room-1@broker
enablePropertyFilter=true
traceTopicEnable=true
recallMessageEnable=true
enableMixedMessageType=true
transactionTimeOut=1500
transactionCheckInterval=1000
transactionOpBatchInterval=300
"""
"""Options of a broker for all features, besides delay levels of one second."""

AT_A_TIME = 4
PLAY_SECONDS = 420
"""Timeout of all features of one client."""


@dataclass(frozen=True)
class Topic:
    """A topic of a feature; `%p` in its name stands for the prefix of the feature."""

    name: str = "%pT"
    queues: int = 4
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Feature:
    """A program that checks its own result.

    Attributes:
        name: its Java class.
        topics: topics to create before.
        releases: releases of the client that have it.
    """

    name: str
    topics: Sequence[Topic] = (Topic(),)
    releases: Sequence[str] = RELEASES


@dataclass(frozen=True)
class Played:
    """The result of a feature.

    Attributes:
        is_right: whether all checks passed.
        facts: additional observations.
        failure: the failed check, and its location.
        seconds: run time in seconds.
    """

    is_right: bool
    facts: Mapping[str, object]
    failure: str
    seconds: float


def _typed(kind: str) -> Topic:
    return Topic(f"%p{kind}", attributes={"message.type": kind.upper()})


FEATURES = (
    Feature("TagFilter"),
    Feature("SqlFilter"),
    Feature("SqlChange"),
    Feature("ClassFilter"),
    Feature("Batch", (Topic(queues=1),)),
    Feature("BatchSplit", (Topic(queues=1),)),
    Feature("ConsumeBatch", (Topic(queues=1),)),
    Feature("ConsumeDirectly"),
    Feature("ConsumeTimeout", (Topic(queues=1),)),
    Feature("Orderly"),
    Feature("OrderlyManual"),
    Feature("OrderlyDeadLetter"),
    Feature("OrderlyMove"),
    Feature("OrderlyBroadcast", releases=("5.5.0",)),  # release 4 locks queues for it
    Feature("Transaction"),
    Feature("TransactionOrphan"),
    Feature("DelayLevels"),
    Feature("Timer", releases=("5.5.0",)),
    Feature("Recall", releases=("5.5.0",)),
    Feature("RequestReply"),
    Feature("RequestTimeout"),
    Feature("Broadcast"),
    Feature("Allocation", (Topic(queues=7),)),
    Feature("ServerAssignment", releases=("5.5.0",)),
    Feature("ShortHeartbeats", releases=("5.5.0",)),
    Feature("SkippedHeartbeat", releases=("5.5.0",)),
    Feature("Suspend"),
    Feature("Resubscribe", (Topic("%pFirst"), Topic("%pSecond"))),
    Feature("Pull", (Topic(queues=1),)),
    Feature("PullSchedule"),
    Feature("LitePull"),
    Feature("LitePullAssign", (Topic(queues=2),)),
    Feature("LitePullFilter", (Topic(queues=1),)),
    Feature("Retry"),
    Feature("ResetOffset"),
    Feature("ResetOrderly"),
    Feature("ResetBroadcast", (Topic(queues=1),)),
    Feature("StartFrom"),
    Feature("Trace"),
    Feature("OrderConfig"),
    Feature("Permissions"),
    Feature("Namespace", (Topic("%pspace%%pT"),)),
    Feature("NamespaceV2", releases=("5.5.0",)),
    Feature("Priority", (_typed("Priority"),), releases=("5.5.0",)),
    Feature(
        "MessageTypes",
        [_typed(kind) for kind in ("Normal", "Fifo", "Delay", "Transaction", "Mixed")],
        releases=("5.5.0",),
    ),
    Feature("Compression", releases=("5.5.0",)),
    Feature("PopPush", releases=("5.5.0",)),
    Feature("PopRetry", releases=("5.5.0",)),
    Feature("PopSwitch", releases=("5.5.0",)),
    Feature("PopHandles", (Topic(queues=1),), releases=("5.5.0",)),
    Feature("PopHold", releases=("5.5.0",)),
    Feature("PopInOrder", (Topic(queues=1),), releases=("5.5.0",)),
    Feature("Query", (Topic(), Topic("%pOther"))),
)


def features_command(release: str) -> Sequence[str]:
    """Return the command line of Features.java with the client of a release."""
    folders = ("features", "features5") if release.startswith("5") else ("features",)
    sources = sorted(path for name in folders for path in (HERE / "java" / name).glob("*.java"))
    text = "".join(path.read_text() for path in sources)
    stamp = hashlib.sha256(text.encode()).hexdigest()
    classes = CACHE / "features" / f"{release}-{stamp[:16]}"
    library = clients.jars(release)
    if not classes.exists():
        made = classes.with_name(
            f"{classes.name}.{os.getpid()}"
        )  # renamed, because other processes may run or build them
        made.mkdir(parents=True)
        clients.build(
            *("javac", "-nowarn", "-Xlint:none", "-cp", library, "-d", str(made)),
            *(str(path) for path in sources),
        )
        made.rename(classes)
    quiet = HERE / "java" / "quiet"
    return (*clients.java(f"{quiet}:{classes}:{library}", heap="512m"), "Features")


def prefix_of(feature: Feature, release: str) -> str:
    """Return the prefix of the feature's topics and groups."""
    return f"{feature.name}-{release.replace('.', '_')}-"


async def prepare(namesrv_addr: str, release: str, features: Iterable[Feature]) -> None:
    """Create the topics of the features."""
    async with AdminClient(namesrv_addr) as admin:
        for feature in features:
            for topic in feature.topics:
                await admin.create_topic(
                    topic.name.replace("%p", prefix_of(feature, release)),
                    queues=topic.queues,
                    attributes=topic.attributes,
                )


def play(namesrv_addr: str, release: str, features: Sequence[Feature]) -> dict[str, Played]:
    """Run the features with the client of a release; return feature -> result."""
    asyncio.run(prepare(namesrv_addr, release, features))
    with (CACHE / f"features-{release}.log").open("w") as log:
        process = subprocess.Popen(
            [*features_command(release), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=CACHE,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, answers), daemon=True)
    reader.start()
    played: dict[str, Played] = {}
    waiting = list(features)
    deadline = time.monotonic() + PLAY_SECONDS  # noqa: TID251 - a real process has real time
    try:
        while len(played) < len(features):
            while waiting and len(features) - len(waiting) - len(played) < AT_A_TIME:
                feature = waiting.pop(0)
                prefix = prefix_of(feature, release)
                process.stdin.write(f"{namesrv_addr} {feature.name} {prefix}\n")
                process.stdin.flush()
            line = answers.get(timeout=max(0.0, deadline - time.monotonic()))  # noqa: TID251
            if not line:
                break
            answer = json.loads(line)
            played[answer["feature"]] = Played(
                answer["ok"], answer["facts"], answer["failure"], answer["ms"] / 1000
            )
    except queue.Empty:
        pass  # features without an answer are missing in the result
    finally:
        process.kill()
        process.communicate()
        reader.join()
    return played


def _read(lines: IO[str], answers: queue.Queue[str]) -> None:
    for line in lines:
        answers.put(line)
    answers.put("")


def read_log(release: str) -> str:
    """Return the end of the log of the client of a release."""
    path = Path(CACHE / f"features-{release}.log")
    return path.read_text()[-4_000:] if path.exists() else ""

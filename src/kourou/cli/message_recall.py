"""`kourou message recall`: cancel a scheduled message."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import GRACE_S
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    Namesrv,
    Timeout,
    TopicName,
)
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import TOOLS_GROUP

RECALL_HELP: Final = """\
Recall a scheduled message of TOPIC: it is not delivered.

HANDLE is the recall handle that `kourou send --delay` or `--at` prints, or that a producer's
receipt holds. Java brokers allow it only with recallMessageEnable=true, which is not the default.

\b
Example:
  kourou message recall orders djEgYnJva2VyLWEgb3JkZXJzIDE3...
"""


def recall(
    topic: TopicName,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", show_default=False)],
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Send the recall to the broker that the handle names."""
    config = ProducerConfig(
        send_timeout_ms=int(timeout * 1000),
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )

    async def ask() -> str:
        async with Producer(TOOLS_GROUP, namesrv, config=config) as producer:
            return await producer.recall(topic, handle.strip())

    msg_id = output.run_bounded(ask(), timeout + GRACE_S, f"the cluster at {namesrv}")
    if as_json:
        output.print_json({"msg_id": msg_id})
    else:
        output.print_line(f"recalled: {msg_id}")

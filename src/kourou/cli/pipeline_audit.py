"""`kourou pipeline audit`: loss, duplication and disorder of messages, each named."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli.admin_session import admin_config
from kourou.cli.exits import FAILED
from kourou.cli.options import TIMEOUT_DEFAULT_S, Timeout
from kourou.cli.pipeline_run import Settings, Topics, run_pipeline, select, with_shared_options
from kourou.clock import SystemClock
from kourou.model.instants import parse_duration
from kourou.model.topic import TRACE_TOPIC, check_topic

app = typer.Typer()

LedgerName = Annotated[
    str | None, typer.Option("--ledger", metavar="TOPIC|DIR", help="What producers say they sent.")
]
TraceTopic = Annotated[
    str, typer.Option("--trace-topic", metavar="TOPIC", help="The topic of the traces.")
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="A group that must acknowledge; repeatable."),
]
StoreDirectory = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="DIR", help="Read this store directory instead of asking brokers."
    ),
]
BrokerName = Annotated[
    str | None, typer.Option("--broker-name", metavar="NAME", help="The broker of --store.")
]
SentSince = Annotated[
    str, typer.Option("--from", metavar="WHEN", help="Sent at this time or later.")
]
SentUntil = Annotated[
    str, typer.Option("--to", metavar="WHEN", help="Sent at this time or before.")
]
Settle = Annotated[
    str,
    typer.Option(
        "--settle", metavar="SPAN", help="Time for sends and entries in flight; 0s: none."
    ),
]
Skew = Annotated[str, typer.Option("--skew", metavar="SPAN", help="Largest difference of clocks.")]

AUDIT_HELP: Final = """\
Compare what producers say they sent with what each TOPIC holds and what groups have acknowledged.

The ledger is a topic or a directory that producers write with the hook kourou.SendLedger. A message
is lost only on proof: the broker acknowledged it, still holds that part of the queue, and does not
have it. Traces may be dropped: with --traces alone, a message that is not stored is unknown.
Messages sent in the last --settle before --to are not judged.

The exit code is 1 if a message is lost or unexpected. Duplicates and disorder are findings, too.

\b
Examples:
  kourou pipeline audit orders --ledger order-ledger --group billing
  kourou pipeline audit orders --ledger ./ledger --from -1d --out audit
  kourou pipeline audit orders --traces --from -1h
  kourou pipeline audit orders --ledger ./ledger --store /var/lib/kourou --broker-name broker-a
"""


@app.command(help=AUDIT_HELP, short_help="Loss, duplication and disorder, message by message.")
@with_shared_options
def audit(
    topics: Topics,
    *,
    ledger: LedgerName = None,
    traces: Annotated[bool, typer.Option("--traces", help="Read the traces of clients.")] = False,
    trace_topic: TraceTopic = TRACE_TOPIC,
    groups: Groups = None,
    store: StoreDirectory = None,
    broker_name: BrokerName = None,
    start: SentSince = "earliest",
    end: SentUntil = "now",
    settle: Settle = "1m",
    skew: Skew = "10m",
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    settings: Settings,
) -> None:
    """Print the findings and the counts."""
    from kourou.pipelines import audit as pipeline  # noqa: PLC0415

    selection = select(settings.namesrv, topics, start, end)
    check_topic(trace_topic)
    options = pipeline.Options(
        selection=selection,
        ledger=ledger,
        trace_topic=trace_topic if traces else None,
        groups=tuple(groups or ()),
        store_path=store,
        broker_name=broker_name,
        until_ms=SystemClock().now_ms() if selection.until_ms is None else selection.until_ms,
        settle_ms=0 if settle.strip() in ("0", "0s") else parse_duration(settle, "--settle"),
        skew_ms=parse_duration(skew, "--skew"),
        config=admin_config(timeout),
        rows=settings.rows,
    )
    report = run_pipeline(pipeline, options, settings)
    if report is not None and (report.metrics["lost"] or report.metrics["unexpected"]):
        raise typer.Exit(FAILED)

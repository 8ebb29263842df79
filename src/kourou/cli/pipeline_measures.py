"""Commands of `kourou pipeline` that measure: rates, traces, lags, dead letters by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kourou.cli.admin_session import AdminSession, admin_config
from kourou.cli.exits import print_stderr
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    StoredSince,
    StoredUntil,
    Tags,
    Timeout,
)
from kourou.cli.pipeline_run import (
    ByClock,
    Settings,
    Topics,
    event_time,
    run_pipeline,
    run_stream_or_batch,
    select,
    with_shared_options,
    with_stream_options,
)
from kourou.model.instants import parse_duration
from kourou.model.topic import DLQ_PREFIX, TRACE_TOPIC, check_group, check_topic, dlq_topic

app = typer.Typer()

THROUGHPUT_HELP: Final = """\
Show the rate, size and latency of each TOPIC in windows of time, the latest first.

The latency is that from the producer's clock to the broker's. Windows are by store time, or with
--clock born by the producers' clocks: then messages whose clock is more than 10 minutes ahead, and
those stored later than --lateness after their birth, are in no window and are counted.

With --follow or --new, a window is written once, when messages that are --lateness younger than
its end have arrived (with --clock born, twice that and 10 minutes). A later message of the window,
for example of a broker that was away, is counted as late. The next run in DIR continues.

\b
Examples:
  kourou pipeline throughput orders --from -1h
  kourou pipeline throughput orders payments --window 10s --plot rates.html
  kourou pipeline throughput orders --clock born --lateness 5m --out rates
  kourou pipeline throughput orders --follow --lateness 10s --out live-rates
"""


@app.command(help=THROUGHPUT_HELP, short_help="Rates, sizes and latencies by windows of time.")
@with_stream_options
def throughput(
    topics: Topics,
    *,
    window: Annotated[str, typer.Option(metavar="SPAN", help="Length of a window.")] = "1m",
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    tags: Tags = "*",
    clock: ByClock = "store",
    lateness: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="With --clock born or a stream: the largest delay. [default: 1m; 10m with born]",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Print the windows."""
    from kourou.pipelines import throughput as pipeline  # noqa: PLC0415

    options = pipeline.Options(
        selection=select(settings.namesrv, topics, start, end, tags),
        window_ms=parse_duration(window, "--window"),
        clock=event_time(clock),
        lateness_ms=None if lateness is None else parse_duration(lateness, "--lateness"),
        rows=settings.rows,
    )
    run_stream_or_batch(pipeline, options, settings)


TRACE_HELP: Final = """\
Show the latency of each step of messages, from the traces that clients write, and the slowest
messages.

The steps are send, delivery, consume and total, by topic, group and client. Clients write traces
only with enable_trace (in Java enableTrace). --stored-in reads a topic too, for the exact time at
which its messages were stored. With --out, `spans` has one row for each delivery.

With --follow or --new, the spans of a message are written when no trace of it was stored for
--within. Later traces of it form spans of their own. The next run in DIR continues.

\b
Examples:
  kourou pipeline trace --from -1h
  kourou pipeline trace --stored-in orders --out traces --plot latency.html
  kourou pipeline trace --new --out traces-so-far
"""


@app.command(help=TRACE_HELP, short_help="Latency of each step of messages, from their traces.")
@with_stream_options
def trace(
    *,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The trace topic.")] = TRACE_TOPIC,
    stored_in: Annotated[
        list[str] | None,
        typer.Option("--stored-in", metavar="TOPIC", help="Read store times; repeatable."),
    ] = None,
    within: Annotated[
        str, typer.Option(metavar="SPAN", help="In a stream: time in which a message is traced.")
    ] = "10m",
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    settings: Settings,
) -> None:
    """Print the latencies."""
    from kourou.pipelines import trace as pipeline  # noqa: PLC0415

    for one in stored_in or ():
        check_topic(one)
    options = pipeline.Options(
        selection=select(settings.namesrv, (topic,), start, end),
        stored_in=tuple(stored_in or ()),
        within_ms=parse_duration(within, "--within"),
        rows=settings.rows,
    )
    run_stream_or_batch(pipeline, options, settings)


LAG_HELP: Final = """\
Sample the lag of each GROUP for a time, and forecast when it catches up or falls out of retention;
without GROUP, of all groups.

The forecast is a straight line through the samples. With --out, each run adds its samples to the
table `samples`, and the forecast uses those of the time --over. Ctrl-C ends the sampling early.

\b
Examples:
  kourou pipeline lag
  kourou pipeline lag billing --every 10s --for 5m --plot lag.html
  kourou pipeline lag --for 1h --out lags
"""


@app.command(help=LAG_HELP, short_help="Lags over time, with a forecast.")
@with_shared_options
def lag(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", show_default=False)
    ] = None,
    *,
    every: Annotated[str, typer.Option(metavar="SPAN", help="Interval of the samples.")] = "5s",
    duration: Annotated[
        str, typer.Option("--for", metavar="SPAN", help="Duration of the sampling.")
    ] = "30s",
    over: Annotated[
        str, typer.Option(metavar="SPAN", help="Forecast from the samples of this time.")
    ] = "1h",
    retention: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Retention of messages. [default: the brokers']"),
    ] = None,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    settings: Settings,
) -> None:
    """Print the forecast."""
    from kourou.pipelines import lag as pipeline  # noqa: PLC0415

    options = pipeline.Options(
        name_server=settings.namesrv,
        groups=tuple(groups or ()),
        every_ms=parse_duration(every, "--every"),
        duration_ms=parse_duration(duration, "--for"),
        over_ms=parse_duration(over, "--over"),
        retention_ms=None if retention is None else parse_duration(retention, "--retention"),
        config=admin_config(timeout),
        rows=settings.rows,
    )
    run_pipeline(pipeline, options, settings)


DEAD_LETTERS_HELP: Final = """\
Show the dead letters of each GROUP by cause, the most frequent first; without GROUP, of all groups.

A cause is the original topic, the group and the reason without its numbers, ids and quoted values.
REASON is given by Kourou's consumers only. SAMPLES are positions for `kourou dlq show`.

With --follow or --new, the next run in DIR continues. Without GROUP, a run reads the groups that
have dead letters when it starts; those of a group whose first one comes later are read by the next
run, from that first one on.

\b
Examples:
  kourou pipeline dead-letters
  kourou pipeline dead-letters billing --from -1d --plot causes.html
  kourou pipeline dead-letters --new --out letters
"""


@app.command("dead-letters", help=DEAD_LETTERS_HELP, short_help="Dead letters by cause.")
@with_stream_options
def dead_letters(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", show_default=False)
    ] = None,
    *,
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    settings: Settings,
) -> None:
    """Print the causes."""
    from kourou.pipelines import dead_letters as pipeline  # noqa: PLC0415

    for group in groups or ():
        check_group(group)
    topics = sorted(dead_letter_topics(groups, settings.namesrv, timeout))
    if not topics:
        print_stderr("there are no dead letters" + (f" of {', '.join(groups)}" if groups else ""))
        return
    selection = select(settings.namesrv, topics, start, end)
    options = pipeline.Options(selection=selection, is_of_all_groups=not groups, rows=settings.rows)
    run_stream_or_batch(pipeline, options, settings)


def dead_letter_topics(groups: Sequence[str] | None, namesrv: str, timeout: float) -> set[str]:
    """Return the dead-letter topics that exist: the first dead letter of a group creates one."""
    present = AdminSession(namesrv, timeout).run(lambda admin: admin.topic_list())
    found = {topic for topic in present if topic.startswith(DLQ_PREFIX)}
    return found & set(map(dlq_topic, groups)) if groups else found

"""Commands of `kourou pipeline` that send messages again: replay, redrive and restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kourou.cli.exits import print_stderr
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    StoredSince,
    StoredUntil,
    Tags,
    Timeout,
    Yes,
    confirm,
    refuse_nan,
    topics_to_complete,
)
from kourou.cli.pipeline_measures import dead_letter_topics
from kourou.cli.pipeline_run import (
    Settings,
    Topics,
    check_filter,
    connection_options,
    run_pipeline,
    select,
    with_shared_options,
)
from kourou.cli.start_time import Start, parse_span
from kourou.clock import SystemClock
from kourou.model.topic import DLQ_PREFIX, check_group, check_topic

if TYPE_CHECKING:
    from kourou.pipelines.copies import Sending

app = typer.Typer()

RATE_MIN: Final = 0.1

Where = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="SQL", help="Only messages for which Spark's SQL expression is true."
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="N",
        min=RATE_MIN,
        callback=refuse_nan,
        help="Send at most N messages a second.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count the messages, and send none.")]

REPLAY_HELP: Final = """\
Send the messages of each TOPIC to another topic again: those of a span of time that match.

The copies keep the body, tag, keys, user properties and unique id, and name their originals. The
command can be repeated: messages whose copies are in the target are not sent again. After an error,
Ctrl-C or a crash, the same command continues. Two commands at the same time may send a message
twice.

\b
Examples:
  kourou pipeline replay orders --from -2h --to -1h --into orders-test --dry-run
  kourou pipeline replay orders --into orders-test --tag eu --rate 500
  kourou pipeline replay orders --into orders --same-topic --where "properties.price > 5"
"""


@app.command(help=REPLAY_HELP, short_help="Messages of a span of time, to a topic again.")
@with_shared_options
def replay(
    topics: Topics,
    *,
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="TOPIC",
            help="The topic that receives the copies.",
            show_default=False,
            autocompletion=topics_to_complete,
        ),
    ],
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    tags: Tags = "*",
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="SQL92", help="Only messages that match, for brokers."),
    ] = None,
    where: Where = None,
    same_topic: Annotated[
        bool, typer.Option("--same-topic", help="Allow that --into is TOPIC itself.")
    ] = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    settings: Settings,
) -> None:
    """Send the messages."""
    from kourou.pipelines import replay as pipeline  # noqa: PLC0415

    options = pipeline.Options(
        selection=select(settings.namesrv, topics, start, end, tags, sql),
        into=into,
        sending=_sending(settings, rate, is_dry_run=dry_run),
        where=where,
        same_topic=same_topic,
    )
    _confirm(f"messages of {', '.join(topics)} to {into}", settings, yes=yes or dry_run)
    run_pipeline(pipeline, options, settings)


REDRIVE_HELP: Final = """\
Send the dead letters of each GROUP again that match, with their delivery counts reset.

Only GROUP receives them, as messages of their original topics. With --to-topic they are sent to
those topics, and so to all groups. --where has the columns of the source, and `group`,
`originTopic`, `reason` and `offsetMsgId`.

The command and `kourou dlq redrive` can be repeated, in any order: dead letters that one of them
has sent to the same destination are not sent again, nor are those before the progress of `kourou
dlq redrive --all`, which this command does not change. Two commands at the same time may send a
message twice.

\b
Examples:
  kourou pipeline redrive billing --reason timeout --dry-run
  kourou pipeline redrive billing --from -1d --rate 50
  kourou pipeline redrive billing --origin orders --to-topic --where "reconsumeTimes < 3"
"""


@app.command(help=REDRIVE_HELP, short_help="Dead letters, to their groups or topics again.")
@with_shared_options
def redrive(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    *,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="Send to the original topics, for all groups.")
    ] = False,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="TOPIC",
            help="Only messages of this original topic; repeatable.",
            autocompletion=topics_to_complete,
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only if the reason contains TEXT.")
    ] = None,
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    tags: Tags = "*",
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    settings: Settings,
) -> None:
    """Send the dead letters."""
    from kourou.pipelines import redrive as pipeline  # noqa: PLC0415

    _check_names(groups, origins or ())
    check_filter(tags)
    destination = "their topics, for all groups" if to_topic else ", ".join(groups)
    what = f"dead letters of {', '.join(groups)} to {destination}"
    _confirm(what, settings, yes=yes or dry_run)
    present = groups if settings.explain else _with_dead_letters(groups, settings, timeout)
    if not present:
        return
    options = pipeline.Options(
        groups=tuple(present),
        sending=_sending(settings, rate, is_dry_run=dry_run),
        **_span(start, end),
        tags=tags,
        origins=tuple(origins or ()),
        reason=reason,
        where=where,
        to_topic=to_topic,
    )
    run_pipeline(pipeline, options, settings)


RESTORE_HELP: Final = """\
Send the messages of the archive in DIRECTORY to their topics, or to another one, if the topic does
not hold them.

The copies keep the body, tag, keys, user properties and unique id, and lose the properties of
delays, transactions, retries and origins. Messages are recognized by their unique ids, so the
command can be repeated; after an error, Ctrl-C or a crash, it continues. Two commands at the same
time may send a message twice.

\b
Examples:
  kourou pipeline restore archive --dry-run
  kourou pipeline restore archive --topic orders --into orders-2024 --rate 1000
  kourou pipeline restore archive --where "hour = '2026112423' AND tags = 'eu'"
"""


@app.command(help=RESTORE_HELP, short_help="Archived messages, to topics again.")
@with_shared_options
def restore(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", show_default=False)],
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic; repeatable."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="TOPIC",
            help="The topic that receives them. [default: their own]",
            autocompletion=topics_to_complete,
        ),
    ] = None,
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    settings: Settings,
) -> None:
    """Send the messages."""
    from kourou.pipelines import restore as pipeline  # noqa: PLC0415

    options = pipeline.Options(
        directory=directory,
        sending=_sending(settings, rate, is_dry_run=dry_run),
        topics=tuple(topics or ()),
        into=into,
        **_span(start, end),
        where=where,
    )
    destination = into or "their topics"
    _confirm(f"messages of {directory} to {destination}", settings, yes=yes or dry_run)
    run_pipeline(pipeline, options, settings)


def _check_names(groups: Sequence[str], topics: Sequence[str]) -> None:
    for group in groups:
        check_group(group)
    for topic in topics:
        check_topic(topic)


def _span(start: str, end: str) -> dict[str, int | None]:
    begin, until_ms = parse_span(start, end, SystemClock().now_ms())
    return {"since_ms": None if isinstance(begin, Start) else begin, "until_ms": until_ms}


def _with_dead_letters(groups: list[str], settings: Settings, timeout_s: float) -> list[str]:
    """Return the groups that have dead letters, and print the names of the others."""
    found = dead_letter_topics(groups, settings.namesrv, timeout_s)
    present = sorted(topic.removeprefix(DLQ_PREFIX) for topic in found)
    for group in sorted({*groups} - {*present}):
        print_stderr(f"there are no dead letters of {group}")
    return present


def _sending(settings: Settings, rate: float | None, *, is_dry_run: bool) -> Sending:
    from kourou.pipelines.copies import Sending  # noqa: PLC0415

    return Sending(
        name_server=settings.namesrv,
        options=connection_options(),
        rate_max=rate,
        tasks=settings.cores,
        is_dry_run=is_dry_run,
        rows=settings.rows,
    )


def _confirm(what: str, settings: Settings, *, yes: bool) -> None:
    confirm(f"Send {what}", f"{what} are sent", yes=yes or settings.explain)

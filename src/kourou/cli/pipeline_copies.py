"""Commands of `kourou pipeline` that copy messages: each once by a key, and into archives."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kourou.cli.options import StoredSince, StoredUntil, Tags
from kourou.cli.pipeline_run import (
    ByClock,
    Settings,
    Topics,
    check_directory,
    event_time,
    run_stream_or_batch,
    select,
    with_stream_options,
)
from kourou.errors import UsageError
from kourou.model.instants import parse_duration

app = typer.Typer()

COMPACT_BELOW_BYTES: Final = 32 * 1024 * 1024
"""Smaller files of an archive are joined by `--compact`."""

ARCHIVE_EVERY_MS: Final = 60_000
"""Default interval of the batches of an archive that follows its topics."""

DEDUP_HELP: Final = """\
Write the messages of each TOPIC once, and show the keys with the most duplicates.

A message is a duplicate if a message with its key was kept before: at any time, or at most --within
before. The key is the unique id, which a producer's retries share, the first message key, the body,
or a property. With --out, `messages` has each message once, and `duplicates` the others' positions.

With --follow or --new, --within is required, the message that arrives first is kept, and there is
no table `duplicates`: they are counted. A message that comes more than --within after younger ones
is late: it is left out and counted. The next run in DIR continues.

\b
Examples:
  kourou pipeline dedup orders --out orders-once
  kourou pipeline dedup orders --by key --within 10m
  kourou pipeline dedup orders --by property:order_id --from -1d
  kourou pipeline dedup orders --follow --within 10m --out orders-once
"""


@app.command(help=DEDUP_HELP, short_help="Each message of a topic once, by a key.")
@with_stream_options
def dedup(
    topics: Topics,
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="KEY", help="id, key, body or property:NAME.")
    ] = "id",
    within: Annotated[
        str | None,
        typer.Option(
            "--within", metavar="SPAN", help="Largest time to a duplicate. [default: any]"
        ),
    ] = None,
    clock: ByClock = "store",
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    tags: Tags = "*",
    settings: Settings,
) -> None:
    """Print the duplicates."""
    from kourou.pipelines import dedup as pipeline  # noqa: PLC0415

    options = pipeline.Options(
        selection=select(settings.namesrv, topics, start, end, tags),
        key=by,
        within_ms=None if within is None else parse_duration(within, "--within"),
        clock=event_time(clock),
        rows=settings.rows,
    )
    run_stream_or_batch(pipeline, options, settings)


ARCHIVE_HELP: Final = """\
Archive each TOPIC as Parquet files below DIRECTORY, partitioned by topic and hour of store time.

Each run adds the messages that came since the last one, exactly once: after a crash, the same
command continues. With --follow it reads on until Ctrl-C, and adds files --every minute; with --new
it adds files for each million messages. All these runs can follow each other in any order.

`_manifests` has the files of each run. --compact joins the small files of an hour. Any reader of
Parquet can read the directory.

\b
Examples:
  kourou pipeline archive orders payments --into archive
  kourou pipeline archive orders --into archive --compact
  kourou pipeline archive orders --into archive --follow --every 5m
"""


@app.command(help=ARCHIVE_HELP, short_help="Topics as Parquet files, each message once.")
@with_stream_options
def archive(
    topics: Topics,
    *,
    directory: Annotated[
        str, typer.Option("--into", metavar="DIRECTORY", help="The archive.", show_default=False)
    ],
    compact: Annotated[
        bool, typer.Option("--compact", help="Then join files of less than 32 MiB.")
    ] = False,
    settings: Settings,
) -> None:
    """Print the new files."""
    from kourou.pipelines import archive as pipeline  # noqa: PLC0415

    if settings.out is not None:
        raise UsageError("--out is not an option of archive: the archive is --into DIRECTORY")
    check_directory(directory, "--into")
    options = pipeline.Options(
        selection=select(settings.namesrv, topics, "earliest", "now"),
        directory=directory,
        compact_below_bytes=COMPACT_BELOW_BYTES if compact else 0,
        rows=settings.rows,
    )
    run_stream_or_batch(pipeline, options, settings, every_ms=ARCHIVE_EVERY_MS, has_out=False)

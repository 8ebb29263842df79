"""`kourou store`: inspect, verify and repair a store directory, export and import messages."""

from __future__ import annotations

import typer

from kourou.cli import store_check, store_dump, store_info, store_repair, store_transfer

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Inspect, verify and repair a store directory, export and import messages.",
)


@app.callback()
def store() -> None:
    """Group the commands below."""


app.command(help=store_info.INFO_HELP, short_help="Show sizes, topics and state of a store.")(
    store_info.info
)
app.command(help=store_check.CHECK_HELP, short_help="Verify every file.")(store_check.check)
app.command(help=store_dump.DUMP_HELP, short_help="Print the content of a file, row by row.")(
    store_dump.dump
)
app.command(
    help=store_repair.REBUILD_HELP, short_help="Rebuild queues, index and timers from the log."
)(store_repair.rebuild)
app.command(help=store_repair.TRUNCATE_HELP, short_help="Truncate the log.")(store_repair.truncate)
app.command("export", help=store_transfer.EXPORT_HELP, short_help="Write the messages to a file.")(
    store_transfer.export_store
)
app.command("import", help=store_transfer.IMPORT_HELP, short_help="Append the messages of a file.")(
    store_transfer.import_store
)

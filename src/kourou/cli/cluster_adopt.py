"""`kourou cluster adopt`: makes the store of a single broker that of a set's first master."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kourou.broker.controlling.identity import IDENTITY_FILE, read_identity
from kourou.cli import output
from kourou.cli.store_access import open_store_disk
from kourou.errors import UsageError
from kourou.store.tools.adopt import EPOCH, adopt_log, plan_adoption

ADOPT_HELP: Final = """\
Prepare the store of a single broker for a set whose master controllers elect.

\b
Stop the broker, adopt its store, and start the broker in controller mode,
before all other replicas of its name: the first one becomes master. The
others copy the whole log. Without adoption a broker of RocketMQ would never
send them the messages that it has already.

The command writes one small file: epoch 0, from the first byte of the log on. A store that has
epochs is refused, since it belongs to a set already.

\b
Examples:
  kourou cluster adopt ~/.kourou/store --dry-run
  kourou cluster adopt ~/.kourou/store

Exit codes: 0 adopted, 2 no store in PATH, or it cannot be adopted, 3 a broker uses it, or it cannot
be read or written.
"""


def adopt(path: Path, *, dry_run: bool, as_json: bool) -> None:
    """Adopt a store, and print what was changed.

    Raises:
        UsageError: there is no store, or it cannot be adopted.
        StoreLockedError: a broker uses it.
    """
    with open_store_disk(path, lock=True) as disk:
        identity = read_identity(disk)
        if identity is not None:
            raise UsageError(
                f"{path} is the store of replica {identity.broker_id} of {identity.broker_name} "
                f"({IDENTITY_FILE}): start it as it is"
            )
        plan = plan_adoption(disk)
    if not dry_run:
        with open_store_disk(path, lock=False) as disk:
            adopt_log(disk, plan)
    if as_json:
        row = {"store": str(path), "first": plan.first, "end": plan.end}
        output.print_json(row | {"epoch": EPOCH, "adopted": not dry_run})
        return
    verb = "would be" if dry_run else "is"
    output.print_line(
        f"{path}: the log, from {plan.first:,} to {plan.end:,}, {verb} that of epoch {EPOCH}"
    )
    if not dry_run:
        output.print_line("Start it in controller mode, before all other replicas of its name.")

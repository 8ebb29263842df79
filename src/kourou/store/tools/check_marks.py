"""Checks a closed store for an unfinished truncation, and for a replica behind its acks."""

from __future__ import annotations

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.store.paths import ACK_MARK, EPOCHS
from kourou.store.recovery.cut import CUT_MARK, read_cut
from kourou.store.state.ack_mark import REMEDY, find_loss, read_ack_mark
from kourou.store.state.epoch_file import read_epochs
from kourou.store.tools.findings import Finding


def check_marks(disk: Disk, log_begin: int, log_end: int) -> list[Finding]:
    """Return what the marks reveal.

    Args:
        disk: holds the store, which is closed.
        log_begin: the first position of the log.
        log_end: the end of its last record.

    Raises:
        OSError: a file cannot be read.
    """
    findings = []
    try:
        cut = read_cut(disk)
    except CorruptRecordError as error:
        findings.append(Finding(CUT_MARK, 0, str(error)))
    else:
        if cut is not None:
            problem = f"a truncation at byte {cut.position} is not finished: opening it finishes it"
            findings.append(Finding(CUT_MARK, 0, problem))
    mark = read_ack_mark(disk)
    if mark is None:
        return findings
    try:
        loss = find_loss(mark, read_epochs(disk), log_begin, log_end)
    except CorruptRecordError as error:
        return [*findings, Finding(EPOCHS, 0, str(error))]
    if loss:
        problem = f"the replica may lack messages that it has acknowledged: {loss}; {REMEDY}"
        findings.append(Finding(ACK_MARK, 0, problem))
    return findings

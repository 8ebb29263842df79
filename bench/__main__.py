"""Measures Kourou and its peers, question by question, in interleaved rounds.

    python -m bench [--questions NAME,...] [--peers NAME,...] [--rounds 3] [--seconds 2] [--long]

Prints a table of medians, their ratios to Java's, and the goals. Writes every figure with machine,
commit and versions to var/bench/results.json. docs/performance.md describes the measurements.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import (
    brokers,
    catch_up,
    clients,
    end_to_end,
    fan_out,
    grpc_calls,
    idle_memory,
    load_generator,
    machine,
    peers,
    pops,
    replicas,
    send,
    start_up,
)
from bench.question import Question
from bench.report import Findings, Sample
from bench.turn import Stage, Turn

QUESTIONS: Final = (
    *send.QUESTIONS,
    *catch_up.QUESTIONS,
    *end_to_end.QUESTIONS,
    *pops.QUESTIONS,
    *grpc_calls.QUESTIONS,
    *fan_out.QUESTIONS,
    *start_up.QUESTIONS,
    *idle_memory.QUESTIONS,
    *clients.QUESTIONS,
    *brokers.QUESTIONS,
    *replicas.QUESTIONS,
)
SHORT_SET: Final = (peers.FAST, peers.BARE, peers.JAVA)
RESULTS: Final = load_generator.VAR / "results.json"
_TRIES_MAX: Final = 3
"""Maximum number of tries of one turn in a row, if other programs use the machine."""
_REPEATS_MAX: Final = 8
"""Maximum number of repeated turns in the whole run, so that it ends on a busy machine."""
_WIDTH_MIN: Final = 150


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--questions", default="*", help="names or patterns such as send-*-sync, with commas"
    )
    parser.add_argument("--peers", default=",".join(SHORT_SET), help="names with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="measured in each turn")
    parser.add_argument("--long", action="store_true", help="include questions that take minutes")
    parser.add_argument("--before", type=Path, help="the `src` of another commit, as another peer")
    parser.add_argument("--dir", type=Path, help="directory for stores, on the disk to measure")
    parser.add_argument(
        "--touch",
        type=int,
        default=8,
        help="GiB of memory to write to before (bench/machine.py)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="list all questions and peers")
    return parser.parse_args()


def chosen(patterns: str, *, is_long: bool) -> list[Question]:
    """Return the questions that match the patterns; with `*`, long ones only with `is_long`.

    Raises:
        SystemExit: a pattern matches no question.
    """
    found = []
    for pattern in patterns.split(","):
        matching = [q for q in QUESTIONS if fnmatch.fnmatchcase(q.name, pattern)]
        if not matching:
            raise SystemExit(f"no question matches {pattern}; --list prints all")
        found += [q for q in matching if is_long or not q.is_long or pattern != "*"]
    return list(dict.fromkeys(found))


def _measure(question: Question, turn: Turn) -> Sample | None:
    """Run a turn; return None if the peer does not support the question."""
    values = question.measure(turn)
    if values is None:
        return None
    return Sample(question.name, turn.peer.name, values, all(turn.alone()), turn)


def _rounds(findings: Findings, args: argparse.Namespace, stage: Stage) -> None:
    console, repeats = Console(stderr=True), _REPEATS_MAX
    for number in range(args.rounds):
        # The second peer of a round uses 7 % less CPU for the same code, because of the state of
        # memory and disk after the first. So the order is reversed in every other round.
        peers_now = findings.peers[::-1] if number % 2 else findings.peers
        for question, peer in itertools.product(findings.questions, peers_now):
            if number and question.is_once and peer.is_slow:
                continue
            for _ in range(_TRIES_MAX):
                try:
                    sample = _measure(question, Turn(peer, stage, args.seconds, question.name))
                except RuntimeError as error:
                    console.print(f"{question.name}, {peer.name}: {error}", markup=False)
                    break
                if sample is not None:
                    findings.add(sample)
                if sample is None or sample.is_alone or not repeats:
                    break
                repeats -= 1
        console.print(f"round {number + 1} of {args.rounds} done")


def main() -> None:
    """Measure every question with every peer, round by round."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all servers are stopped
    args = _parse()
    if args.list:
        print("questions:", *(q.name + (" (long)" if q.is_long else "") for q in QUESTIONS))
        print("peers:", *peers.CONSTRUCTORS, peers.BEFORE)
        return
    console = Console()
    console = Console(width=max(console.width, _WIDTH_MIN))
    questions = chosen(args.questions, is_long=args.long)
    names = [*args.peers.split(","), *([peers.BEFORE] if args.before else [])]
    load_generator.build()
    available_peers = peers.available(
        names, args.before, lambda line: console.print(line, markup=False)
    )
    machine.touch_memory(args.touch << 30)
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="run-", dir=args.dir or load_generator.VAR))
    stage, findings = Stage(home), Findings(questions, available_peers)
    try:
        _rounds(findings, args, stage)
    finally:  # also after an early end, with the results so far
        stage.close()
        shutil.rmtree(home, ignore_errors=True)
        console.print(findings.table())
        findings.save(args.out)
        took_s = time.monotonic() - began
        console.print(machine.line(machine.describe()), markup=False)
        console.print(f"took {took_s:.0f} s; every figure: {args.out}", markup=False)


if __name__ == "__main__":
    main()

"""The example programs of the README, run against a real broker process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kourou.blocking import AdminClient, PullConsumer
from kourou.client.sending.ledger_entry import decode_entries
from kourou.testing.process import Serving

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 120

pytestmark = pytest.mark.slow


SWITCHED_ON = {
    "KOUROU_BROKER_ENABLE_PROPERTY_FILTER": "true",
}


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with Serving.start(tmp_path / "store", environ=SWITCHED_ON) as serving:
        yield serving.namesrv


def start(example: str, namesrv: str, **environ: str) -> subprocess.Popen[str]:
    """Start an example; its stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / example)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NAMESRV_ADDR": namesrv, **environ},
    )


def run(example: str, namesrv: str) -> str:
    """Run an example to its end and return what it printed."""
    process = start(example, namesrv)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert not err
    return out


def test_order_is_sent_charged_and_read(namesrv: str) -> None:
    sent = run("quickstart_producer.py", namesrv)
    assert "orders" in sent
    assert sent.endswith("DISK\n")

    read = run("quickstart_pull.py", namesrv)
    assert read.endswith('{"id": 17, "eur": 120}\n')

    consumer = start("quickstart_consumer.py", namesrv)
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == 'charge o-17 {"id": 17, "eur": 120}\n'
        consumer.send_signal(signal.SIGTERM)
        out, err = consumer.communicate(timeout=TIMEOUT_S)
        assert (consumer.returncode, out, err) == (0, "", "")
    finally:
        consumer.kill()


def test_order_sent_twice_is_charged_once(namesrv: str, tmp_path: Path) -> None:
    for _ in range(2):
        run("quickstart_producer.py", namesrv)
    database = tmp_path / "charges.db"

    consumer = start("charge_once.py", namesrv, CHARGES_DB=str(database))
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "charge o-17\n"
        consumer.send_signal(signal.SIGTERM)
        out, err = consumer.communicate(timeout=TIMEOUT_S)
        assert (consumer.returncode, out, err) == (0, "", "")
    finally:
        consumer.kill()

    connection = sqlite3.connect(database)
    assert connection.execute("SELECT order_id FROM charges").fetchall() == [("o-17",)]
    connection.close()


def test_request_gets_its_reply(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic(
            "PriceAsked", queues=4
        )  # otherwise consumers find it only by their next refresh
    answers = start("price_answers.py", namesrv)
    try:
        assert run("price_question.py", namesrv) == "120 EUR\n"
        answers.send_signal(signal.SIGTERM)
        out, err = answers.communicate(timeout=TIMEOUT_S)
        assert (answers.returncode, out, err) == (0, "", "")
    finally:
        answers.kill()


def test_paid_order_message_is_sent_if_the_payment_is_stored(namesrv: str, tmp_path: Path) -> None:
    database = tmp_path / "payments.db"
    process = start("paid_orders.py", namesrv, PAYMENTS_DB=str(database))
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, "")
    assert out == "o-17 COMMIT confirmed\no-18 ROLLBACK confirmed\n"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT * FROM payment").fetchall() == [("o-17", 120)]
    out, _ = start("paid_orders.py", namesrv, PAYMENTS_DB=str(database)).communicate(
        timeout=TIMEOUT_S
    )
    assert out.startswith("o-17 ROLLBACK"), "an order is paid and published once"


def test_payments_of_an_account_are_booked_in_order(namesrv: str) -> None:
    consumer = start("ordered_payments.py", namesrv)
    try:
        assert consumer.stdout is not None
        lines = [consumer.stdout.readline().split() for _ in range(7)]
        assert [line[2] for line in lines if line[:2] == ["booked", "bob"]] == ["10", "20", "30"]
        of_alice = [(line[0], line[2]) for line in lines if line[1] == "alice"]
        assert of_alice == [
            ("booked", "10"),
            ("refused", "20"),
            ("booked", "20"),
            ("booked", "30"),
        ]
        consumer.send_signal(signal.SIGTERM)
        out, err = consumer.communicate(timeout=TIMEOUT_S)
        assert (consumer.returncode, out, err) == (0, "", "")
    finally:
        consumer.kill()


def test_only_the_reminder_that_is_not_recalled_is_delivered(namesrv: str) -> None:
    assert run("reminders.py", namesrv) == "recalled dentist\nremind of opera\n"


def test_sql_expression_selects_large_orders_of_two_regions(namesrv: str) -> None:
    assert run("large_orders.py", namesrv) == "o-2 o-3\n"


def test_photos_are_resized_once_and_the_broken_one_is_a_dead_letter(namesrv: str) -> None:
    printed = run("resized_photos.py", namesrv)

    assert sorted(printed.splitlines()) == ["resize p-1", "resize p-3"]
    with AdminClient(namesrv) as admin:
        (dead,) = admin.dead_letters("resizers")
    assert dead.message.body == b"p-2"


def test_long_report_delays_no_other(namesrv: str) -> None:
    consumer = start("popped_reports.py", namesrv)
    try:
        assert consumer.stdout is not None
        lines = [consumer.stdout.readline() for _ in range(3)]
        assert lines == ["rendered 0.1\n", "rendered 0.2\n", "rendered 0.5\n"]
        consumer.send_signal(signal.SIGTERM)
        out, err = consumer.communicate(timeout=TIMEOUT_S)
        assert (consumer.returncode, out, err) == (0, "", "")
    finally:
        consumer.kill()


README = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
STEPS = re.findall(r"```(python)?\n(.*?)```", README, flags=re.DOTALL)
ENDLESS = {"receive": signal.SIGINT, "run(consumer)": signal.SIGTERM}
"""Commands that run until a signal, with that signal."""


def steps() -> list[str]:
    """Return the commands of the README after the start of `kourou serve`, in order.

    Shell commands follow `$`; programs are Python. Spark's program has a test of its own.
    """
    found: list[str] = []
    for language, block in STEPS:
        if language == "python":
            found.append(block)
        else:
            lines = [line for line in block.splitlines() if line.startswith("$ ")]
            found += [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]
    assert found[0] == "kourou serve"
    return [step for step in found[1:] if "kourou.spark" not in step]


def test_readme_commands_work_in_their_order(namesrv: str) -> None:
    assert len(steps()) >= 7
    for step in steps():
        name, *words = shlex.split(step, comments=True) if step.startswith("kourou ") else ("-c",)
        command = ["-m", "kourou.cli.main", *words] if name == "kourou" else ["-c", step]
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NAMESRV_ADDR": namesrv},
        )
        try:
            number = next((ENDLESS[part] for part in ENDLESS if part in step), None)
            if number is not None:
                assert process.stdout is not None
                assert "17" in process.stdout.readline(), step
                process.send_signal(number)
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == (130 if number == signal.SIGINT else 0), (step, out, err)
            assert "Error" not in err, (step, err)
        finally:
            process.kill()


def test_recorded_orders_are_in_the_ledger(namesrv: str) -> None:
    lines = run("recorded_orders.py", namesrv).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["o-1", "o-2", "o-3"]
    assert lines[3].endswith(", 0 entries dropped")
    with PullConsumer("readers", namesrv) as reader:
        queues = reader.fetch_subscribe_message_queues("order-ledger")
        bodies = [one.body for queue in queues for one in reader.pull(queue, 0).messages]
    entries = [one for body in bodies for one in decode_entries(body) if one is not None]
    assert sorted(one.kind for one in entries) == ["closed", "opened", "send", "send", "send"]

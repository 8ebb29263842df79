"""Program of `test_lakehouse_kills.py`: runs a program of docs/lakehouse.md, and kills it.

    killed_lakehouse.py TABLE NAMESRV TOPIC DIRECTORY [BATCH ...]

The driver, its JVM included, is killed when the table has a batch of these numbers, before Spark
records that. A batch that the table had before is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from tests.spark.lake_tables import bodies
from tests.spark.page_programs import located, programs

Append = Callable[[DataFrame, int], None]


def main() -> None:
    table, namesrv, topic, directory, *numbers = sys.argv[1:]
    home = Path(directory)
    program = located(programs("lakehouse.md")[table], namesrv, topic, home)
    program = program.replace("50000", "200")
    program = program.replace("foreachBatch(append)", "foreachBatch(killed(append))")
    doomed = {int(number) for number in numbers}

    def killed(append: Append) -> Append:
        def call(batch: DataFrame, number: int) -> None:
            append(batch, number)
            if number in doomed:
                assert bodies(table, home), "the table has the batch"
                os.killpg(0, signal.SIGKILL)

        return call

    exec(compile(program, "docs/lakehouse.md", "exec"), {"killed": killed})  # noqa: S102


if __name__ == "__main__":
    main()

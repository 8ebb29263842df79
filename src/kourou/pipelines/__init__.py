"""Data pipelines on Spark: topics become tables of rates, spans, lags, dead letters and files.

Each module is one pipeline: functions from DataFrame to DataFrame, a class `Options`, `tables`,
which builds the DataFrames, and `run`, which writes them and returns a `Report`. `kourou pipeline
NAME` runs them from the command line; programs call the same functions:

    from kourou.pipelines import throughput
    from kourou.pipelines.selection import Selection

    selection = Selection(name_server="localhost:9876", topics=("orders",))
    report = throughput.run(spark, throughput.Options(selection=selection))

Needs the extra `spark`.
"""

from __future__ import annotations

"""The PySpark data source `rocketmq`: a topic's messages as the rows of a DataFrame.

Needs the extra `spark`. Spark finds the data source without an import wherever this package is
installed (through the package `pyspark_rocketmq`).

    spark.read.format("rocketmq").option("nameServer", "localhost:9876").option("topic", "flights")
"""

from __future__ import annotations

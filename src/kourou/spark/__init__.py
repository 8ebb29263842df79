"""The PySpark data source `rocketmq`: a topic's messages as the rows of a DataFrame.

Needs the extra `spark`. Spark finds the source by itself wherever this package is installed
(`pyspark_rocketmq`); nothing has to be imported for that.

    spark.read.format("rocketmq").option("nameServer", "localhost:9876").option("topic", "flights")
"""

from __future__ import annotations

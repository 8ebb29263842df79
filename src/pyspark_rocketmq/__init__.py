"""Entry point by which Spark finds the data source `rocketmq`.

Spark imports every top-level module named `pyspark_*` and looks for `DefaultSource` in it. If one
of these modules raises on import, Spark finds no data source of any package. Importing this module
therefore never raises: a failure is logged, and Spark then does not know the format `rocketmq`.

If the module of another package raises, Spark reports DATA_SOURCE_NOT_FOUND for this source too.
Remedy: remove that package, or call `kourou.spark.register(spark)`.
"""

from __future__ import annotations

import logging

try:
    from kourou.spark.source import RocketMQDataSource

    DefaultSource = RocketMQDataSource
except Exception:
    logging.getLogger(__name__).exception(
        "spark_source.missed format=rocketmq remedy: pip install 'kourou[spark]'"
    )

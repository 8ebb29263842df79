"""Where Spark finds the data source `rocketmq`: it imports every top-level module `pyspark_*`.

A module that raises there hides every data source of every package from Spark, so importing this
one never does; what went wrong is logged instead, and Spark then does not know the format. A
neighbour that raises hides this source: Spark answers DATA_SOURCE_NOT_FOUND. Remedy: remove that
package, or call `kourou.spark.register(spark)`.
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

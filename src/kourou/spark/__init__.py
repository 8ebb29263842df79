"""The PySpark data source `rocketmq`: a topic's messages as the rows of a DataFrame.

Needs the extra `spark`. Spark finds the source by itself wherever this package is installed
(`pyspark_rocketmq`); nothing here is imported for that.
"""

"""Read a topic as a Spark table; requires `pip install 'kourou[spark,java]'` and `kourou serve`."""

import kourou.spark

spark = kourou.spark.session("orders")  # finds a Java; a SparkSession of your own does as well
orders = (
    spark.read.format("rocketmq")
    .option("nameServer", "localhost:9876")
    .option("topic", "orders")
    .load()
)
orders.groupBy("tags").count().orderBy("tags").show()

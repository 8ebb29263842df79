"""Program of test_archive_kills: archives a topic as a stream, and kills itself on request.

Usage: killed_archive.py NAMESRV TOPIC DIRECTORY [KILL_AT]

KILL_AT is a file below DIRECTORY: as soon as it exists, the driver, its JVM included, is killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from kourou.pipelines import archive
from kourou.pipelines.selection import Selection
from kourou.pipelines.streams import Streaming
from kourou.spark.sessions import local_session
from tests.spark.kills.killed_stream import kill_when


def main() -> None:
    namesrv, topic, directory, *kill_at = sys.argv[1:]
    for name in kill_at:
        path = Path(directory) / name
        threading.Thread(target=kill_when, args=(path,), daemon=True).start()
    spark = local_session("killed")
    spark.sparkContext.setLogLevel("ERROR")
    limit = {"maxOffsetsPerTrigger": "300"}
    selection = Selection(name_server=namesrv, topics=(topic,), options=limit)
    archive.stream(spark, archive.Options(selection=selection, directory=directory), Streaming())
    spark.stop()


if __name__ == "__main__":
    main()

"""The published test kit: simulated time, disk and network, and clusters that run on them.

    module          what it gives
    loop            `run_virtual`: a coroutine run in virtual time, which jumps instead of waiting
    clock           a wall clock that goes with the loop, or by hand
    disk            `SimDisk`: forgets what was not synced when it crashes; fails when told to
    network         `MemoryNetwork`: connections in memory, with delays, cuts and stalls
    runtime         `sim_runtime`: all of the above as one `Runtime`
    flusher         `SimFlusher`: syncs that take their time, or fail, while appends go on
    cluster         `Cluster`: name servers, brokers and clients in one loop; crash, restart, check
    recording       a cluster with one topic, whose consumers write down what they get
    process         `Serving`: a real `kourou serve`, for signals, kill -9 and the command line
    broker_parts    parts of a broker without its network; `send_rig` its sends
    peers           `FakePeer`: who a handler answers to
    raw_client      a client that sends any bytes
    lone_connection a connection on a recording transport

Nothing here is imported by what ships to production.
"""

"""The published test kit: simulated time, disk and network, and clusters that run on them.

    module          contents
    loop            `run_virtual`: runs a coroutine in virtual time, which jumps instead of waiting
    clock           wall clocks that follow the loop, or are advanced by the test
    disk            `SimDisk`: loses unsynced data in a crash; fails on request
    network         `MemoryNetwork`: connections in memory, with delays, cuts and stalls
    runtime         `sim_runtime`: network, clock and randomness as one `Runtime`
    flusher         `SimFlusher`: syncs that are slow, or fail, while appends continue
    cluster         `Cluster`: name servers, brokers and clients in one loop; crash, restart, check
    recording       a cluster with one topic, whose consumers record their deliveries
    process         `Serving`: a real `kourou serve`, for signals, kill -9 and the command line
    simulated_broker    a broker without a network, for tests of handlers; `send_rig`: its sends
    peers           `FakePeer`: the client that a handler answers
    raw_client      a client that sends arbitrary bytes
    lone_connection a connection on a recording transport

Production code never imports this package.
"""

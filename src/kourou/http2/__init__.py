"""HTTP/2 and gRPC framing for servers: the protocol without I/O, and the server that drives it."""

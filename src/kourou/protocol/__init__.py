"""Bytes to values and back: remoting frames, headers, bodies and message records; no I/O."""

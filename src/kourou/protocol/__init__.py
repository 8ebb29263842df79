"""Codecs of remoting frames, headers, bodies and message records; no I/O."""

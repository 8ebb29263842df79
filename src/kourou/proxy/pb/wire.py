"""Base class of all messages, and the shared messages of times."""

from google.protobuf.message import Message as WireMessage

from kourou.proxy.pb.pool import POOL, message_class

__all__ = ["Duration", "Timestamp", "WireMessage"]

Timestamp = message_class(POOL.FindMessageTypeByName("google.protobuf.Timestamp"))
Duration = message_class(POOL.FindMessageTypeByName("google.protobuf.Duration"))

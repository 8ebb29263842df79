"""Messages and enums of the package `grpc.health.v1`."""

from kourou.proxy.pb.pool import package_names

globals().update(package_names("grpc.health.v1"))

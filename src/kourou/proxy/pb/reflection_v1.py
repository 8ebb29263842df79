"""Messages of the package `grpc.reflection.v1`."""

from kourou.proxy.pb.pool import package_names

globals().update(package_names("grpc.reflection.v1"))

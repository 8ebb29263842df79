"""Messages and enums of the package `apache.rocketmq.v2`."""

from kourou.proxy.pb.pool import package_names

globals().update(package_names("apache.rocketmq.v2"))

"""Protocol buffers of the proxy: `.proto` files, their descriptors, and one module a package.

`make proto` writes `descriptors.binpb` and the stubs (`.pyi`) from `protos/`.
"""

"""The asyncio edge of the remoting protocol: connections, servers, and a pool of connections."""

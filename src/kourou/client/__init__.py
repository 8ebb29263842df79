"""The asyncio clients: producer, consumers, admin."""

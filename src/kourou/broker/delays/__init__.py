"""The 18 delay levels: delivery of delayed messages when they are due."""

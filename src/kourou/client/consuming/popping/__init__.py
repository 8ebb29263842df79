"""Receiving by pop: the requests of a `SimpleConsumer`, renewals and message scopes."""

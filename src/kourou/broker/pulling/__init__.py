"""Pulls, held pulls and queries: permission checks, filters, and reads of the store."""

"""Stored records: layout, encoders, checks, scans and decoders of a message's form in the log."""

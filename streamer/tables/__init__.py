"""Formats of tables, records, tokens and arrays."""

"""Joins cache and fetch: sessions, schedules, leases, look-ahead."""

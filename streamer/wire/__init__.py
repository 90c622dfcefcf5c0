"""Defines the protocol of the socket between clients and the engine, without I/O.

Used by `client/` and `service/`, which have the two ends of the socket; messages and schedules also by `engine/`,
`loader/`, `batches/`, `cli/` and `tools/`.
"""

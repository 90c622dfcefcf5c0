"""Joins a dataset to a second one: the keys of both sides, and the table of rows, made at the first use."""

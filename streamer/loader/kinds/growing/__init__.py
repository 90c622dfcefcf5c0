"""Implements the kind of a growing dataset: one that is trained on while it still arrives.

ordering.py  the dataset, and how a stream of rounds goes on
growth.py    the log of admissions, the agreement of the ranks on each round, state and statistics
session.py   the session with the engine: cohorts arrive, stay for their rounds, and leave

Used by `loader/kinds/__init__.py` for a dataset with `growing=`. The rules of rounds are in `order/growing/`.
"""

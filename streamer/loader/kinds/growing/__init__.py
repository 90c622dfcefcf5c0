"""One rank's side of a dataset that is trained on while it still arrives.

ordering.py how a stream of rounds goes on
growth.py   the log of admissions, its state and its statistics; how many cohorts have arrived on every rank
session.py  the engine session: cohorts that arrive, stay and leave, and their chunks, as the engine is asked for them
"""

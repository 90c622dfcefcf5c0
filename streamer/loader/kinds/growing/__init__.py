"""One rank's side of a dataset that is trained on while it still arrives.

growth.py   the log of admissions, its state and its statistics
offers.py   how many cohorts have arrived on every rank
feed.py     the chunks of cohorts, as the engine is asked for them
session.py  the engine session: cohorts that arrive, stay and leave
"""

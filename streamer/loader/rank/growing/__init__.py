"""One rank's batches of a dataset that is trained on while it still arrives.

feed.py     the chunks of cohorts, as the engine is asked for them
offers.py   how many cohorts have arrived on every rank
session.py  the engine session: cohorts that arrive, stay and leave
prepared.py   batches and state
"""

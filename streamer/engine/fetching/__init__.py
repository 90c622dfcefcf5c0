"""Brings chunks: one fetch for each, from peers or the store, to the cache.

in_flight.py   one fetch per chunk             fetches.py     a fetch, and who waits for it
sources.py     the store, or peers before it   fetchers.py    stores and fetchers by credentials
publisher.py   recodes and writes
"""

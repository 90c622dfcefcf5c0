"""Collates samples to a batch, and lays the batch out in memory so that it reaches the trainer without pickling arrays.

Workers write batches with it (`batches/workers`), and the loader's feed reads them (`loader/feed/supply.py`).
"""

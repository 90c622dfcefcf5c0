"""Makes batches in worker processes or threads: starts them, sends them tasks, and replaces those that have ended.

The loader's feeder uses it (`loader/feed/feeder.py`), on its own thread in the trainer's process. With
`num_workers=0` the trainer makes batches itself with the same maker (`loader/feed/supply.py`).
"""

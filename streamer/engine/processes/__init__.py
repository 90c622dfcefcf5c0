"""Fetch processes fetch and publish chunks beside the engine's loop, which only says which and when.

Pure decisions:
policy.py     how many processes; whether a store that refuses is asked by one alone; the bounds of each

On the engine's loop:
pool.py       the queue, which process takes a chunk, crashes
process.py    one process from the side of the engine

In the process:
__main__.py   its life
fetching.py   fetches and publishes what it is told

messages.py   what they tell each other
"""

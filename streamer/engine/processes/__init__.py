"""Fetches and publishes chunks in processes beside the engine's loop, which only says which chunks and when.

The engine uses it (`engine/bring.py`, `engine/engine.py`).

Pure decisions:
policy.py     decides how many processes there are, what each may use, and if one alone asks a store that refuses

On the engine's loop:
pool.py       queues chunks, gives each to a process, and handles crashes
process.py    starts one process and talks to it

In the process:
__main__.py   starts and ends with the engine
fetching.py   fetches and publishes the chunks that it is told

On both sides:
messages.py   defines what they tell each other
"""

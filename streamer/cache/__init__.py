"""Keeps chunks on the SSD: decides which ones stay (`policy/`), and writes, finds, checks and removes their files.

The engine uses it, most of all `chunk_cache.py` and `policy/cache_policy.py`. The commands `streamer cache` and
`streamer warm`, the fetch processes, the recoder's side of the engine and `peers/` use single modules.
"""

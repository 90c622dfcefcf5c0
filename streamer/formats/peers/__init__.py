"""Shards of other streaming libraries, which an `index.json` beside them lists."""

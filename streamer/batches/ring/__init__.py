"""The ring of a loader: slots of shared memory in which workers write batches, and which the trainer reads.

The loader's feed owns the ring (`loader/feed`), and workers map its slots (`batches/workers`).
"""

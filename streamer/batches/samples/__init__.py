"""Makes samples from their ordinals: plans which ones a rank reads, reads their bytes, decodes and transforms them.

Workers make batches of samples with it (`batches/workers/batch_maker.py`). The loader opens datasets and reads single
samples and scans with it (`streamer/loader`).
"""

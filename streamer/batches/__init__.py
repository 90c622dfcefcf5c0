"""Makes batches: reads, decodes and collates samples in worker processes, and hands them over in shared memory.

The loader (`streamer/loader`) uses it: for training, and for what reads a dataset outside of training, such as packs.
The commands (`streamer/cli`, `streamer/tools`) use parts of it.
"""

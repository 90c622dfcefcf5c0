"""Makes batches: reads, decodes and collates samples in worker processes, and hands them over in shared memory."""

"""The demo: from a bucket to batches on one machine, with everything measured in the run that shows it.

Read `train.py` first: it is an ordinary training script on the public interface. The rest is around it.

    train.py    what each rank runs: `StreamingDataset`, `StreamingDataLoader`, a small network
    run.py      index, torchrun, the kill of the engine in epoch 3; collects what was measured
    report.py   the table, what bounds it in words, the curves

The S3 server and the images are in `examples/bucket`.
"""

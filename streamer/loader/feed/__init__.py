"""Makes a loader's batches: a thread sends them to workers, restores their order, and delivers them to the trainer.

supply.py  what `loader/epoch.py` takes batches from: workers, or the trainer's own thread
feeder.py  the thread that talks to the workers and the engine
run.py     one run of batches: its window, its session, and the queue to the trainer
waits.py   texts about what a batch waits for
"""

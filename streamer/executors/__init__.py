"""Runs the tasks of packs, indexes and measurements by any `concurrent.futures.Executor`.

runner.py      finds an executor by its name, runs tasks, and repeats those that fail by chance
processes.py   an executor of processes of this machine
worker.py      the program of such a process
on_ray.py      an executor of tasks of a Ray cluster (Dask brings its own)

Used by `shards/`, `indexing/`, `cli/`, `loader/measure.py` and `batches/rows/table.py`.
"""

"""Runs tasks by any `concurrent.futures.Executor`.

processes.py   processes of this machine; worker.py: what they run
on_ray.py      tasks of a Ray cluster (Dask brings an executor)
runner.py      executors by name; runs tasks, repeats those that fail
"""

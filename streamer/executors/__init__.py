"""Who runs tasks: anything that is a `concurrent.futures.Executor`.

processes.py   processes of this machine; worker.py: what they run
runner.py      executors by name
running.py     runs tasks, repeats those that fail
"""

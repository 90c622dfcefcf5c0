"""Who runs the tasks, by name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import NamedTuple

from streamer.cgroup import usable_cores
from streamer.errors import ConfigError
from streamer.executors.processes import Processes


class Runner(NamedTuple):
    """An executor, and how many tasks it is given at the same time."""

    executor: Executor
    most_tasks: int


@contextmanager
def runner(on: str | Executor) -> Iterator[Runner]:
    """Starts the executor of a name; one that is given is used as it is.

    Args:
        on: "processes" (one for each core), "processes:8", "dask:tcp://scheduler:8786", "ray:auto" or "ray:" with
            another address that `ray.init` takes, or an executor.

    Raises:
        ConfigError: no such name, or its package is not installed.
    """
    if isinstance(on, Executor):
        yield Runner(on, 2 * usable_cores())
        return
    kind, _, rest = on.partition(":")
    if kind == "processes" and (not rest or (rest.isdecimal() and int(rest) > 0)):
        count = int(rest) if rest else usable_cores()
        executor = Processes(count)
        try:
            yield Runner(executor, 2 * count)
        finally:
            # What is still running then is no longer wanted.
            executor.shutdown(cancel_futures=True)
    elif kind == "dask" and rest:
        with _dask(rest) as found:
            yield found
    elif kind == "ray" and rest:
        with _ray(rest) as found:
            yield found
    else:
        raise ConfigError(f"on={on!r} is not processes, processes:8, dask:tcp://scheduler:8786 or ray:auto", field="on")


@contextmanager
def _dask(address: str) -> Iterator[Runner]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            "on='dask:...' needs Dask here and on its workers: pip install 'streamer-data[dask]'", field="on"
        ) from error
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise ConfigError(f"on='dask:{address}': no scheduler answers there ({error})", field="on") from error
    with client:
        # Not pure: a task is run again where its result is known but its shard is gone.
        executor = client.get_executor(pure=False)
        try:
            yield Runner(executor, 2 * max(1, sum(client.nthreads().values())))
        finally:
            executor.shutdown(wait=False)


@contextmanager
def _ray(address: str) -> Iterator[Runner]:
    try:
        import ray

        from streamer.executors.on_ray import RayExecutor
    except ImportError as error:
        raise ConfigError(
            "on='ray:...' needs Ray here and on its workers: pip install 'streamer-data[ray]'", field="on"
        ) from error
    # A program that uses Ray is connected already.
    connected = ray.is_initialized()
    try:
        if not connected:
            ray.init(address, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"on='ray:{address}': no cluster answers there ({error})", field="on") from error
    executor = RayExecutor()
    try:
        yield Runner(executor, 2 * max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        executor.shutdown()
        if not connected:
            ray.shutdown()

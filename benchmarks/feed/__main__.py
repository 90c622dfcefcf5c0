"""How many emulated accelerators this machine and a store can feed, without a GPU.

    python -m benchmarks.feed resnet50
    python -m benchmarks.feed retinanet --data s3://bucket/like/ --accelerators 2 4 8

Each accelerator is a process that takes a batch and sleeps for the step; utilisation is computing / total without the
first step, and it is fed at or above the bar. Bytes arrive in host memory, undecoded. Cold runs begin with an empty
cache for 20 % of the data, which stands for data larger than memory; in warm ones all of it is on the local disk, or
in memory where it fits. The numbers are doubled until one is not fed, then halved. Sizes, batches, steps and bars are
those of public storage benchmarks; the data is scaled to 2 to 9 GB and the rules are not theirs: a figure is *like* one
of these benchmarks, not a result of it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.feed.workloads import WORKLOADS, Workload
from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_storage_options, check_places, count, size
from streamer.cli.parser import CommandParser
from streamer.cli.terminal import Terminal, write_figures
from streamer.config import counted, format_bytes

if TYPE_CHECKING:
    from benchmarks.feed.accelerators import Job, Trial
    from streamer.client.settings import ClientSettings

PHASES = ("cold", "warm")
_OLD_OPTIONS = {"--most": "--max-accelerators", "--only": "--phase", "--json": "--json-file"}
# "Larger than memory", scaled down: of the data, this share fits into the cache of a cold run.
_COLD_SHARE = 0.2
_SECONDS = 10.0
# The fewest steps of a measurement: what was fetched ahead during the first one must not last for all of it.
_LEAST_STEPS = 40
_HEADERS = ("accelerators", "cache", "utilisation", "lowest", "samples/s", "MB/s", "fed")
_NO_LIMIT_SECONDS = 1e9
# An engine leaves 3 s after its last connection.
_LEAVING_SECONDS = 10.0


def main() -> int:
    parser = CommandParser(prog="python -m benchmarks.feed", description=str(__doc__), removed=_OLD_OPTIONS)
    parser.add_argument("like", choices=WORKLOADS, metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--data", metavar="URL", help="read this; without it data is generated on the local disk")
    parser.add_argument("--objects", type=count, metavar="N", help="generate so many (default: 2 to 9 GB of them)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="generate the data here, once, and leave it; caches go here, too"
    )
    parser.add_argument(
        "--accelerators", type=count, nargs="+", metavar="N", help="try these numbers (default: search the largest)"
    )
    parser.add_argument(
        "--max-accelerators", type=count, default=64, metavar="N", help="search up to this number (default: 64)"
    )
    parser.add_argument("--phase", choices=PHASES, help="measure one of the two (default: both)")
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="of each accelerator (default: 1)")
    parser.add_argument(
        "--worker-type",
        choices=("process", "thread"),
        default="process",
        help="thread: workers share the accelerator's process (default: process, as the loader has it)",
    )
    parser.add_argument("--cold-cache", type=size, metavar="SIZE", help="of cold runs (default: 20%% of the data)")
    parser.add_argument("--seconds", type=float, default=_SECONDS, metavar="S", help="for each number (default: 10)")
    parser.add_argument("--json-file", type=Path, metavar="FILE", help="write every figure")
    add_storage_options(parser)
    parser.set_defaults(json=False, plot=None)
    return run(parser.parse_args(), Terminal())


@dataclass(frozen=True)
class Found:
    """The result of one phase.

    Attributes:
        phase: "cold" or "warm".
        fed: the largest number of accelerators that were fed together; 0: not even one.
    """

    phase: str
    fed: int
    trials: tuple[Trial, ...]

    @property
    def stopped(self) -> Trial | None:
        """The trial of the smallest number above `fed` that was tried."""
        above = [trial for trial in self.trials if trial.accelerators > self.fed]
        return min(above, key=lambda trial: trial.accelerators, default=None)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Measures, and prints a table and a sentence for each phase."""
    check_places(arguments.plot, arguments.json_file)
    chosen = WORKLOADS[arguments.like]
    with _folder(arguments.keep) as place, _caches(place) as caches:
        url = arguments.data or _generated(chosen, place, arguments.objects, terminal)
        jobs = _prepared(chosen, url, caches, arguments, terminal)
        found = [_measured(phase, job, chosen, arguments, terminal) for phase, job in jobs.items()]
    terminal.line(f"like {chosen.name}: batches of {chosen.batch_size}, steps of {chosen.step_seconds:g} s, {url}")
    terminal.table(_HEADERS, [_row(each, trial, chosen) for each in found for trial in each.trials], words=("cache",))
    for each in found:
        terminal.line(_sentence(each, chosen))
    write_figures(arguments, terminal, {"like": asdict(chosen), "phases": list(map(asdict, found))})
    return Exit.DONE


def next_count(fed: Mapping[int, bool], most: int) -> int | None:
    """Returns the next number of accelerators to try: doubled until one is not fed, then halved between the two.

    Args:
        fed: whether all were fed, by the numbers that were tried.
        most: the largest number to try.

    Returns:
        None: the largest number that is fed is known.
    """
    best = max((count for count, enough in fed.items() if enough), default=0)
    worst = min((count for count, enough in fed.items() if not enough and count > best), default=None)
    if worst is None:
        return min(most, max(1, 2 * best)) if best < most else None
    return (best + worst) // 2 if worst - best > 1 else None


def _measured(phase: str, whole: Job, chosen: Workload, arguments: argparse.Namespace, terminal: Terminal) -> Found:
    """Makes all runs of one phase; each cold one has a cache folder of its own."""
    from benchmarks.feed.accelerators import attempt

    trials: list[Trial] = []
    fed: dict[int, bool] = {}
    given = iter(arguments.accelerators or ())
    while (
        count := next(given, None) if arguments.accelerators else next_count(fed, arguments.max_accelerators)
    ) is not None:
        job = replace(whole, accelerators=count)
        if phase == "cold":
            folder = Path(tempfile.mkdtemp(prefix="cold-", dir=job.cache_dir.parent))
            job = replace(job, cache_dir=folder)
        trials.append(trial := attempt(job))
        fed[count] = trial.utilisation >= chosen.bar
        terminal.note(f"{phase}, {counted(count, 'accelerators')}: {trial.utilisation:.1%}")
        if phase == "cold":
            _remove(job.cache_dir)
    return Found(phase, max((count for count, enough in fed.items() if enough), default=0), tuple(trials))


def _prepared(
    chosen: Workload, url: str, caches: Path, arguments: argparse.Namespace, terminal: Terminal
) -> dict[str, Job]:
    """Indexes the data and, for warm runs, makes it local; returns the job of each phase, for one accelerator."""
    from benchmarks.feed.accelerators import Job, has_one_shape
    from streamer.cli.warming import Pace, Warming
    from streamer.client.engine_client import EngineClient
    from streamer.loader.options.dataset_options import absolute
    from streamer.manifest.table import Manifest
    from streamer.wire.messages import GetManifest

    settings = replace(_settings(caches / "warm"), storage_options=arguments.storage_options)
    request = GetManifest(0, [absolute(url)], "auto", limit_seconds=_NO_LIMIT_SECONDS)
    with EngineClient(settings) as client:
        with terminal.progress("indexing", "bytes") as bar:
            folder = client.manifest(request, lambda step: bar.update(step.done, step.total or None, step.text))
        manifest = Manifest.open(folder)
        if arguments.phase != "cold":
            with terminal.progress("warming", "bytes") as bar:
                Warming(client, manifest, Pace(0), None).run(bar.update)
    whole = Job(
        url=url,
        manifest=folder,
        storage_options=arguments.storage_options,
        cache_dir=settings.cache_dir,
        cache_bytes=None,
        batch_size=chosen.batch_size,
        step_seconds=chosen.step_seconds,
        stacks=chosen.batch_size == 1,
        workers=arguments.workers,
        worker_type=arguments.worker_type,
        seconds=max(arguments.seconds, _LEAST_STEPS * chosen.step_seconds),
        accelerators=1,
    )
    whole = replace(whole, stacks=whole.stacks or has_one_shape(whole))
    cold = replace(whole, cache_bytes=arguments.cold_cache or int(_COLD_SHARE * manifest.total_bytes))
    return {phase: job for phase, job in zip(PHASES, (cold, whole), strict=True) if arguments.phase in (None, phase)}


def _settings(cache_dir: Path) -> ClientSettings:
    """Returns the settings of an engine of this command's own, even if the environment names another one."""
    from streamer.client.settings import ClientSettings

    return replace(ClientSettings.from_environment(), engine=None, cache_dir=cache_dir)


def _remove(cache_dir: Path) -> None:
    """Removes a cache after its engine has ended; a running one would make it again."""
    socket = _settings(cache_dir).socket_path
    latest = time.monotonic() + _LEAVING_SECONDS
    while socket.exists() and time.monotonic() < latest:
        time.sleep(0.1)
    shutil.rmtree(cache_dir, ignore_errors=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yields a folder for generated data; a temporary one unless it is named."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="streamer-like-") as place:
        yield Path(place)


@contextmanager
def _caches(place: Path) -> Iterator[Path]:
    """Yields a folder for caches, one of which is "warm"."""
    folder = Path(tempfile.mkdtemp(prefix="caches-", dir=place))
    try:
        yield folder
    finally:
        _remove(folder / "warm")
        shutil.rmtree(folder, ignore_errors=True)


def _generated(chosen: Workload, place: Path, objects: int | None, terminal: Terminal) -> str:
    from benchmarks.feed.generate import generate

    count = objects or chosen.objects
    folder = place / f"like-{chosen.name}-{count}"
    with terminal.progress("generating", "objects") as bar:
        generate(chosen, folder, count, bar.update)
    return str(folder)


def _row(found: Found, trial: Trial, chosen: Workload) -> tuple[str, ...]:
    return (
        str(trial.accelerators),
        found.phase,
        f"{trial.utilisation:.1%}",
        f"{trial.lowest:.1%}",
        f"{trial.samples_per_second:,.0f}",
        f"{trial.bytes_per_second / 1e6:,.0f}",
        "yes" if trial.utilisation >= chosen.bar else "no",
    )


def _sentence(found: Found, chosen: Workload) -> str:
    """Describes how many are fed, the rate at which they read, and the bottleneck of the next number."""
    fed = f"{found.phase}: {counted(found.fed, 'accelerators')} fed at {chosen.bar:.0%} or more"
    if found.fed:
        fed += f", {format_bytes(found.fed * chosen.needed_bytes_per_second)}/s"
    stopped = found.stopped
    return fed if stopped is None else f"{fed}; what stops {stopped.accelerators}: {stopped.bottleneck}"


if __name__ == "__main__":
    sys.exit(main())

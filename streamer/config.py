"""All settings, validated; the only reader of TOML, and of streamer's own variables in the environment.

Sizes are bytes, times are seconds. A default carries the measurement or document it comes from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from streamer.errors import ConfigError, without_secrets
from streamer.launchers import find_place, read_number

MiB = 1 << 20
GiB = 1 << 30

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGTP")},
    **{f"{p}IB": 1024 ** (i + 1) for i, p in enumerate("KMGTP")},
    **{p: 1000 ** (i + 1) for i, p in enumerate("KMGTP")},
}

FetchClient = Literal["auto", "curl", "obstore"]
LogFormat = Literal["text", "json"]


def parse_bytes(text: str | int, field_name: str = "size") -> int:
    """Reads a size: 1000, "200GB" (10^9), "8MiB" (2^20), "1.5 TiB".

    Raises:
        ConfigError: not a size, or negative.
    """
    if isinstance(text, int):
        number = float(text)
        unit = ""
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
        if match is None or match[2].upper() not in _UNITS:
            raise ConfigError(
                f"{field_name}={text!r} is not a size; write bytes, or 200GB, 8MiB, 1.5TiB", field=field_name
            )
        number = float(match[1])
        unit = match[2].upper()
    if number < 0:
        raise ConfigError(f"{field_name}={text!r} is negative", field=field_name)
    return int(number * _UNITS[unit])


def format_bytes(size_bytes: float) -> str:
    """Writes a size for people: 1.4 GB, 8.4 MB, 512 B (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size_bytes) < 1000 or unit == "TB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def enough_bytes(count: int) -> str:
    """Formats as `format_bytes`, rounded up, so that the result is not smaller than `count` as a limit."""
    unit = 1
    while count >= 1000 * unit and unit < 10**12:
        unit *= 1000
    tenth = max(1, unit // 10)
    return format_bytes(-(-count // tenth) * tenth)


def counted(count: int, unit: str) -> str:
    """Writes a number and its unit, a plural with an s, for people: 1 chunk, 2,000 chunks."""
    return f"{count:,} {unit[:-1] if count == 1 else unit}"


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """The settings of the fetcher. A file sets `FETCH_SETTINGS`; the others are fixed, and vary in tests only."""

    # The client that reads S3 and web servers. "auto" is libcurl on Linux: against obstore 3,798 to 2,250 samples/s of
    # cold tars, 725 to 1,221 MB of memory, 56 % of the engine's CPU per sample (2 cores, 2026-11-23). It runs on one
    # core, up to 0.82 GB/s with TLS and 5,000 objects of 110 KB a second, per fetch process; obstore has threads.
    client: FetchClient = "auto"
    # 8-16 MiB is the optimum of cost and speed on S3 (AnyBlob, PVLDB 16(11); AWS whitepaper).
    range_bytes: int = 8 * MiB
    # 250 requests in flight fill 100 Gbit/s (AnyBlob section 2.4).
    window_max: int = 256
    # Reserved before a request, released after publish. None: a quarter of the cgroup, <= 1 GiB.
    memory_bytes: int | None = None
    # How long to wait for an endpoint that serves no request (a rolling restart, a lost route, an early start).
    outage_seconds: float = 60.0
    hedge: bool = True
    # 16 x 90 MB/s starts at 10 Gbit/s; slow start takes it from there.
    window_start: int = 16
    window_min: int = 4
    # A range is given up after this many consecutive tries without a byte and this many seconds, if other ranges of the
    # endpoint succeed; sooner if it stalls again and again with bytes in between (fetch/retry.py).
    attempts: int = 8
    failing_seconds: float = 8.0
    # Upper bound of the random pause before the second try; it doubles with each try, up to `backoff_max_seconds`.
    backoff_start_seconds: float = 0.05
    backoff_max_seconds: float = 4.0
    # A body slower than the floor for this long is abandoned and resumed on a new connection.
    progress_seconds: float = 1.5
    progress_floor_bytes_per_second: int = 64 * 1024
    # The first try waits at most this long for its first byte (S3: max above 10 s in 10^6, Bodner 2025), each next
    # twice as long; four times the p99 seen, from 2 s on, when that is known.
    first_byte_seconds: float = 10.0
    # A budget must exceed the mass of the tail to help, and bounds the harm in an outage: at 2 % slow requests 3 % take
    # p99 from 1,040 to 103 ms for 2.1 % more requests, as 5 % did (2026-11-20).
    hedge_requests_share: float = 0.03
    hedge_bytes_share: float = 0.03


FETCH_SETTINGS = ("client", "range_bytes", "window_max", "memory_bytes", "outage_seconds", "hedge")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The folder of the chunks on this machine, and how much they may take."""

    directory: Path
    # None: 80 % of the free space plus what the cache holds already.
    limit_bytes: int | None = None
    # The cache gives way before the disk is full for everybody else: to this much free space, or this share of the
    # file system; of both, the larger. None of them: see cache/disk_space.py.
    free_floor_bytes: int | None = None
    free_floor_share: float | None = None
    # Read-only folders below the writable one.
    layers: tuple[Path, ...] = ()
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Everything below one url, and how its store is reached: the options stay with the service."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    # Whether the manifest that a client names by manifest= is written there, with the service's keys, if none is there.
    writable: bool = False

    def __repr__(self) -> str:
        # A signature in the operator's url is as secret as the options.
        return f"DatasetConfig({without_secrets(self.url)!r}, writable={self.writable})"


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The settings of an engine as a service of its own."""

    # host:port of the page, /metrics, /healthz and /readyz; "": none.
    http: str = ""
    # Users that may connect besides the service's own, root, and the members of the cache's group.
    allow_uids: tuple[int, ...] = ()
    # A file whose content clients must show, besides being allowed users.
    token_file: Path | None = None
    # Kubernetes kills 30 s after SIGTERM by default: what is on its way has to be down before.
    drain_seconds: float = 20.0
    # 512 ranks of 8 worker processes; each idle connection costs 3 KB (CPython 3.11, 2026-11-20).
    max_connections: int = 4096


@dataclass(frozen=True, kw_only=True)
class PeersConfig:
    """The engines whose caches act as one. All of them have equal settings here, and one token."""

    # "off", "dns:name:port" (each address of a name), "slurm:port" (each node of the job), or "host:port,host:port".
    members: str = "off"
    # host:port of the peer server.
    listen: str = "0.0.0.0:7070"
    # A file whose content a peer must show; required where `members` is set.
    token_file: Path | None = None
    # A folder with tls.crt, tls.key and ca.crt: peers speak TLS, and show each other certificates of that authority.
    tls_folder: Path | None = None
    # Chunks that are sent at once.
    sends: int = 16

    @property
    def enabled(self) -> bool:
        """Whether there are peers."""
        return self.members not in ("", "off")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine: one cache folder, one fetcher, one socket."""

    cache: CacheConfig
    fetch: FetchConfig = field(default_factory=FetchConfig)
    socket_path: Path | None = None
    # The engine leaves this long after its last connection; None: a service, it stays.
    grace_seconds: float | None = 3.0
    # Nothing is evicted for this long after a start with a folder that is not empty: clients re-open their sessions.
    settle_seconds: float = 2.0
    # A session silent for this long while others wait loses the protection of its look-ahead.
    silent_seconds: float = 60.0
    # Look-ahead covers the tail of the latency: 2 x p99.9 at full link speed.
    lookahead_bytes: int = 512 * MiB
    # Processes that fetch and publish beside the engine's loop; 0: the loop does. None ("auto"): started and ended by
    # load, at most one for four cores, so that small machines have none (engine/processes/policy.py).
    fetch_processes: int | None = None
    # The datasets that a service serves, and their credentials; empty: any url, with the options that the client sends.
    datasets: tuple[DatasetConfig, ...] = ()
    # Refuses local files, loopback, link-local and metadata addresses in urls that clients choose: set for a service
    # without datasets, whose clients have other rights.
    refuse_local: bool = False
    # Files that were read for datasets and service besides the configuration itself: one that changes is read again.
    secret_files: tuple[Path, ...] = ()
    service: ServiceConfig = field(default_factory=ServiceConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """The place of this process among the trainers of the job; `master` is the host of rank 0, as torchrun names it."""

    rank: int = 0
    world_size: int = 1
    node: int = 0
    nodes: int = 1
    job: str = ""
    master: str = ""
    # A line about variables of launchers that are incomplete or differ.
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank} is not in 0..{self.world_size - 1} (world_size={self.world_size})", field="rank"
            )


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables of the environment; read once, here."""

    cache_dir: Path
    runtime_dir: Path
    engine: str | None
    rank: RankConfig
    log_level: str | None
    log_format: LogFormat = "text"
    token_file: Path | None = None
    # The TOML file of the engine, one that a trainer starts or `streamer serve`.
    config: Path | None = None
    # The socket and the interval of notifications that a service manager names (sd_notify(3)).
    notify_socket: str | None = None
    watchdog_seconds: float | None = None
    # The settings of an engine in STREAMER_* variables, by lower-case name ("cache_bytes"), as written.
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Reads STREAMER_*, XDG_*, and the ranks as launchers set them.

        Raises:
            ConfigError: a variable that is not what it should be.
        """
        env = os.environ if variables is None else variables
        caches = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/tmp") / ".cache")
        return cls(
            # The engine runs in another folder.
            cache_dir=Path(os.path.abspath(env.get("STREAMER_CACHE_DIR") or Path(caches) / "streamer")),
            runtime_dir=Path(os.path.abspath(_runtime_dir(env))),
            engine=env.get("STREAMER_ENGINE") or None,
            rank=_rank(env),
            log_level=env.get("STREAMER_LOG") or None,
            log_format=_log_format(env),
            token_file=Path(env["STREAMER_TOKEN_FILE"]) if env.get("STREAMER_TOKEN_FILE") else None,
            config=Path(os.path.abspath(env["STREAMER_CONFIG"])) if env.get("STREAMER_CONFIG") else None,
            notify_socket=env.get("NOTIFY_SOCKET") or None,
            watchdog_seconds=(read_number(env, ("WATCHDOG_USEC",)) or 0) / 1e6 or None,
            settings={
                name.lower(): env[f"STREAMER_{name}"]
                for name in (*ENGINE_VARIABLES, *SERVICE_VARIABLES)
                if env.get(f"STREAMER_{name}")
            },
        )

    def engine_settings(self) -> dict[str, str]:
        """Returns the settings of an engine that this process starts for itself.

        Raises:
            ConfigError: a variable is set that only a service can have.
        """
        for name in self.settings:
            if name.upper() in SERVICE_VARIABLES:
                raise ConfigError(
                    f"STREAMER_{name.upper()} is a setting of `streamer serve`, and the engine that a job starts for "
                    "itself cannot have it: unset it, or run `streamer serve` with it and set STREAMER_ENGINE to "
                    "unix:/path/of/its/socket here",
                    field=f"STREAMER_{name.upper()}",
                )
        return dict(self.settings)


# The socket of an embedded engine in its cache folder, for clients that do not see its runtime folder. It begins like
# the folder's marker: earlier versions take a folder that has nothing else for an empty one.
CACHE_SOCKET_NAME = "streamer-cache.sock"

# The variables of every process of streamer, those of any engine, and those that only `streamer serve` can have.
_COMMON = frozenset(
    ["CACHE_DIR", "RUNTIME_DIR", "ENGINE", "LOG", "LOG_FORMAT", "TOKEN_FILE", "CONFIG", "JOB", "NODE", "NODES"]
)
ENGINE_VARIABLES = ("CACHE_BYTES", "MEMORY_BYTES", "FETCH_PROCESSES", "GROUP")
SERVICE_VARIABLES = (
    *("SOCKET", "HTTP", "ALLOW_UIDS", "DRAIN_SECONDS", "MAX_CONNECTIONS"),
    *("PEERS", "PEERS_LISTEN", "PEERS_TOKEN_FILE", "PEERS_TLS_FOLDER"),
)
# Kubernetes puts these into every container when a Service is called "streamer".
_KUBERNETES = re.compile(r"STREAMER_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)")


def check_variables(variables: Mapping[str, str] | None = None) -> None:
    """Refuses a misspelt STREAMER_* variable.

    Raises:
        ConfigError: names it, and those that there are.
    """
    known = {f"STREAMER_{name}" for name in (*_COMMON, *ENGINE_VARIABLES, *SERVICE_VARIABLES)}
    for name in os.environ if variables is None else variables:
        if name.startswith("STREAMER_") and name not in known and not _KUBERNETES.fullmatch(name):
            raise ConfigError(f"{name} is not a setting; there are {', '.join(sorted(known))}", field=name)


def check_socket_path(path: Path) -> Path:
    """Returns the path of a unix socket, as given.

    Raises:
        ConfigError: the kernel cannot take it: sun_path has 108 bytes including the final zero (unix(7)).
    """
    if (length := len(os.fsencode(path))) > 107:
        raise ConfigError(
            f"the socket path {path} has {length} bytes, the kernel takes 107; set STREAMER_RUNTIME_DIR, or the "
            "service's socket_path, to a shorter one",
            field="runtime_dir",
        )
    return path


def read_token(path: Path) -> str:
    """Returns the token of a file, without the white space around it.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}", field="token_file") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty", field="token_file")
    return token


def _runtime_dir(env: Mapping[str, str]) -> Path:
    # Short: a unix socket's path may have 107 bytes.
    if chosen := env.get("STREAMER_RUNTIME_DIR"):
        # A link that the user names is meant; later no link is followed.
        return Path(os.path.realpath(chosen))
    if (base := env.get("XDG_RUNTIME_DIR")) and os.access(base, os.W_OK):
        return Path(base) / "streamer"
    for base in ("/tmp", "/var/tmp", "/dev/shm"):
        path = Path(f"{base}/streamer-{os.getuid()}")
        if not _is_read_only(path if path.exists() else Path(base)):
            return path
    return Path(f"/tmp/streamer-{os.getuid()}")


def _is_read_only(path: Path) -> bool:
    """Whether a path is on a file system that takes no files, as the root of a hardened container."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return True


def _log_format(env: Mapping[str, str]) -> LogFormat:
    match env.get("STREAMER_LOG_FORMAT") or "text":
        case "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise ConfigError(f"STREAMER_LOG_FORMAT={other!r} is neither text nor json", field="STREAMER_LOG_FORMAT")


def _rank(env: Mapping[str, str]) -> RankConfig:
    place = find_place(env)
    master = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}" if {"MASTER_ADDR", "MASTER_PORT"} <= set(env) else ""
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    # torchrun names a run "none" that has no name.
    run_id = "" if run_id == "none" else run_id
    job = env.get("STREAMER_JOB") or run_id or env.get("SLURM_JOB_ID") or master or place.job
    node = read_number(env, ("STREAMER_NODE", "GROUP_RANK", "SLURM_NODEID"))
    nodes = read_number(env, ("STREAMER_NODES", "GROUP_WORLD_SIZE", "SLURM_NNODES"))
    by_local_size = -(-place.world_size // place.local_size) if place.local_size else 1
    return RankConfig(
        rank=place.rank,
        world_size=place.world_size,
        node=place.rank // (place.local_size or place.world_size) if node is None else node,
        nodes=max(1, place.nodes or by_local_size if nodes is None else nodes),
        # A message holds UTF-8 only, a variable any bytes.
        job=job.encode("utf-8", "backslashreplace").decode(),
        master=env.get("MASTER_ADDR", ""),
        note=place.note,
    )


def read_toml(path: Path) -> dict[str, object]:
    """Reads a configuration file.

    Raises:
        ConfigError: no such file, or not TOML; names the line.
    """
    import tomllib  # Only where there is such a file: 2 ms of each start.

    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", field=str(path)) from error


def check_fields(kind: type[object], values: Mapping[str, object], where: str) -> None:
    """Refuses misspelt settings instead of ignoring them.

    Raises:
        ConfigError: a name that `kind` does not have; lists those it has.
    """
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no setting {name!r}; it has {', '.join(sorted(names))}", field=name)

"""Holds every setting with its default, and reads TOML files and streamer's variables in the environment.

Most packages use it. Sizes are bytes, times are seconds, and comments say where a default comes from. The settings of
an engine are checked where they are read (`service/configuration.py`), not by the dataclasses here.
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
    """Returns a size in bytes, read from 1000, "200GB" (10^9), "8MiB" (2^20) or "1.5 TiB"; a fraction is cut off.

    Raises:
        ConfigError: `text` is not a size, negative, or 8 EiB or more. The message names `field_name`.
    """
    if isinstance(text, int):
        size: float = text
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
        if match is None or match[2].upper() not in _UNITS:
            raise ConfigError(
                f"{field_name}={text!r} is not a size; write bytes, or 200GB, 8MiB, 1.5TiB", field=field_name
            )
        size = float(match[1]) * _UNITS[match[2].upper()]
    if not 0 <= size < 1 << 63:
        rule = "negative" if size < 0 else "8 EiB or more"
        raise ConfigError(f"{field_name} is {rule}, which is no size", field=field_name)
    return int(size)


def format_bytes(size_bytes: float) -> str:
    """Writes a size for people: 1.4 GB, 8.4 MB, 512 B (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size_bytes) < 1000 or unit == "TB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def enough_bytes(count: int) -> str:
    """Writes a number of bytes as `format_bytes` does, but rounded up: a limit that is set to it is large enough."""
    unit = 1
    while count >= 1000 * unit and unit < 10**12:
        unit *= 1000
    tenth = max(1, unit // 10)
    return format_bytes(-(-count // tenth) * tenth)


def counted(count: int, unit: str) -> str:
    """Writes a number with its unit for people: 1 chunk, 2,000 chunks. `unit` is a plural that ends in s."""
    return f"{count:,} {unit[:-1] if count == 1 else unit}"


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """Says how to fetch from stores. Users set `FETCH_SETTINGS`; others vary in tests, `window_start` by process."""

    # The client that reads S3 and web servers. "auto" is libcurl on Linux: against obstore 3,798 to 2,250 samples/s of
    # cold tars, 725 to 1,221 MB of memory, 56 % of the engine's CPU per sample (2 cores, 2026-11-23). It runs on one
    # core, up to 0.82 GB/s with TLS and 5,000 objects of 110 KB a second, per fetch process; obstore has threads.
    client: FetchClient = "auto"
    # Length of a range, at most doubled. 8-16 MiB is best for cost and speed on S3 (AnyBlob, PVLDB 16(11); AWS).
    range_bytes: int = 8 * MiB
    # Requests to an endpoint at once, at most. 250 in flight fill 100 Gbit/s (AnyBlob section 2.4).
    window_max: int = 256
    # Memory for chunks that are being fetched. None means a quarter of the cgroup's memory, at most 1 GiB.
    memory_bytes: int | None = None
    # How long to wait for an endpoint that serves no request (a rolling restart, a lost route, an early start).
    outage_seconds: float = 60.0
    # Whether a range whose first byte is late is asked for a second time.
    hedge: bool = True
    # Requests to an endpoint at once, at first and at least. At first 16 x 90 MB/s are 10 Gbit/s; slow start goes on.
    window_start: int = 16
    window_min: int = 4
    # A range is given up after this many consecutive tries without a byte and this many seconds, if other ranges of the
    # endpoint succeed; sooner if it stalls again and again with bytes in between (fetch/retry.py).
    attempts: int = 8
    failing_seconds: float = 8.0
    # Bound of the random pause before the second try; it doubles with each try, up to `backoff_max_seconds`, which is
    # the bound at once while many requests fail (`RetryBudget`).
    backoff_start_seconds: float = 0.05
    backoff_max_seconds: float = 4.0
    # A body slower than the floor for this long is abandoned and resumed on a new connection.
    progress_seconds: float = 1.5
    progress_floor_bytes_per_second: int = 64 * 1024
    # The first try waits for its first byte four times the p99, once that is known, within 2 s and this (S3: max above
    # 10 s in 10^6, Bodner 2025). Each further try waits twice as long.
    first_byte_seconds: float = 10.0
    # Hedges are at most these shares of the requests and of the bytes. To help, a share must exceed that of the slow
    # requests. At 2 % slow ones, 3 % takes p99 from 1,040 to 103 ms for 2.1 % more requests, as 5 % did (2026-11-20).
    hedge_requests_share: float = 0.03
    hedge_bytes_share: float = 0.03


FETCH_SETTINGS = ("client", "range_bytes", "window_max", "memory_bytes", "outage_seconds", "hedge")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Settings of the folder that keeps chunks on this machine."""

    directory: Path
    # Bytes that the whole folder may take. None means 80 % of the free space and of what the cache holds already.
    limit_bytes: int | None = None
    # The cache leaves the larger of these free on the disk. If both are None, `cache/disk_space.py` chooses.
    free_floor_bytes: int | None = None
    free_floor_share: float | None = None
    # Read-only folders of chunks, which are looked up where `directory` lacks a chunk.
    layers: tuple[Path, ...] = ()
    # Name or number of the group of users that may read the folder and connect; None means the service's user alone.
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """A url below which a service lets its clients read, and the options of its store, which clients do not see."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    # Whether the service writes a manifest, with its own keys, to the url that a client names by manifest=.
    writable: bool = False

    def __repr__(self) -> str:
        # A signature in the operator's url is as secret as the options.
        return f"DatasetConfig({without_secrets(self.url)!r}, writable={self.writable})"


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The settings of an engine as a service of its own."""

    # Address host:port of the page, /metrics, /healthz and /readyz; "" or "off" for none.
    http: str = ""
    # Users that may connect besides the service's own, root, and the members of the cache's group.
    allow_uids: tuple[int, ...] = ()
    # File with the token that clients must show, besides being allowed users; None means that no token is needed.
    token_file: Path | None = None
    # Time for running fetches and requests after SIGTERM. By default Kubernetes kills 30 s after it.
    drain_seconds: float = 20.0
    # Enough for 512 ranks of 8 worker processes; each idle connection costs 3 KB (CPython 3.11, 2026-11-20).
    max_connections: int = 4096


@dataclass(frozen=True, kw_only=True)
class PeersConfig:
    """The engines that share their caches with this one; all need equal members, the same token, and TLS if one has."""

    # "off", "dns:name:port" (each address of a name), "slurm:port" (each node of the job), or "host:port,host:port".
    members: str = "off"
    # Address host:port at which this engine answers peers.
    listen: str = "0.0.0.0:7070"
    # File with the token that a peer must show; required where `members` is set.
    token_file: Path | None = None
    # Folder with tls.crt, tls.key and ca.crt for TLS, by which both sides show certificates; None means no TLS.
    tls_folder: Path | None = None
    # Chunks that this engine sends at once, at most, to all peers together.
    sends: int = 16

    @property
    def enabled(self) -> bool:
        """Whether the configuration names peers."""
        return self.members not in ("", "off")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All settings of one engine."""

    cache: CacheConfig
    fetch: FetchConfig = field(default_factory=FetchConfig)
    # The unix socket at which clients connect; None only where an engine is used without a service.
    socket_path: Path | None = None
    # The engine ends this long after its last connection has ended. None makes it a service, which stays.
    grace_seconds: float | None = 3.0
    # Nothing is evicted for this long after a start with a folder that is not empty, until clients re-open sessions.
    settle_seconds: float = 2.0
    # A session silent for this long while others wait loses the protection of its look-ahead.
    silent_seconds: float = 60.0
    # Look-ahead of all sessions together. It covers the tail of the latency: 2 x p99.9 at full link speed.
    lookahead_bytes: int = 512 * MiB
    # Number of fetch processes; with 0 the engine's loop fetches. With None ("auto") they are started and ended by
    # load, at most one for four cores, so that small machines have none (engine/processes/policy.py).
    fetch_processes: int | None = None
    # The datasets that a service serves. If empty, clients may name any url, and the options that they send are used.
    datasets: tuple[DatasetConfig, ...] = ()
    # Whether to refuse local files, loopback, link-local and metadata addresses in urls that clients choose. It is set
    # for a service without datasets, since the service may read more than its clients may.
    refuse_local: bool = False
    # Files of storage options and tokens that the configuration names: it is read again when one of them changes.
    secret_files: tuple[Path, ...] = ()
    service: ServiceConfig = field(default_factory=ServiceConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """The place of this process among the ranks of a training job; a rank outside 0..`world_size`-1 is a ConfigError.

    Attributes:
        rank, world_size: number of this process, and number of all.
        node, nodes: number of this machine, and number of all.
        job: text that all ranks of this job have in common, mostly no other job; "" if no variable tells one.
        master, note: host of rank 0, as torchrun names it, and a warning (`launchers.Place`); "" where there is none.
    """

    rank: int = 0
    world_size: int = 1
    node: int = 0
    nodes: int = 1
    job: str = ""
    master: str = ""
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank} is not in 0..{self.world_size - 1} (world_size={self.world_size})", field="rank"
            )


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the variables of the environment say; `read` makes it, and other modules take it from here."""

    # Cache folder of engines, and the folder of their sockets and logs; absolute paths.
    cache_dir: Path
    runtime_dir: Path
    # STREAMER_ENGINE as written, such as "unix:/path"; None if it is not set, as for the variables below.
    engine: str | None
    rank: RankConfig
    log_level: str | None
    log_format: LogFormat = "text"
    token_file: Path | None = None
    # TOML file of the engine that a trainer or `streamer serve` starts.
    config: Path | None = None
    # The socket and the interval of notifications that a service manager names (sd_notify(3)); None without one.
    notify_socket: str | None = None
    watchdog_seconds: float | None = None
    # The settings of an engine in STREAMER_* variables, by lower-case name ("cache_bytes"), as written.
    settings: Mapping[str, str] = field(default_factory=dict)
    has_cache_dir: bool = False  # whether STREAMER_CACHE_DIR names the cache folder

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Reads variables of streamer, XDG folders, launchers and service managers: this process's if None is given.

        Raises:
            ConfigError: a variable has an invalid value; those in `settings` are checked where they are used.
        """
        env = os.environ if variables is None else variables
        caches = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/tmp") / ".cache")
        return cls(
            # The engine has another working folder than the trainer that names the path.
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
            settings={name.lower(): env[f"STREAMER_{name}"] for name in _SETTINGS if env.get(f"STREAMER_{name}")},
            has_cache_dir=bool(env.get("STREAMER_CACHE_DIR")),
        )

    def engine_settings(self) -> dict[str, str]:
        """Returns `settings` for an engine that this process starts for itself.

        Raises:
            ConfigError: a variable is set that only `streamer serve` can have.
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


# Name of the socket of an embedded engine in its cache folder, for clients that do not see its runtime folder. Earlier
# versions ignore files whose names begin like this when they look whether a folder is empty.
CACHE_SOCKET_NAME = "streamer-cache.sock"

# Names of variables, without STREAMER_: of every process, of any engine, and of `streamer serve` alone.
_COMMON = frozenset(
    ["CACHE_DIR", "RUNTIME_DIR", "ENGINE", "LOG", "LOG_FORMAT", "TOKEN_FILE", "CONFIG", "JOB", "NODE", "NODES"]
)
ENGINE_VARIABLES = ("CACHE_BYTES", "MEMORY_BYTES", "FETCH_PROCESSES", "GROUP")
SERVICE_VARIABLES = (
    *("SOCKET", "HTTP", "ALLOW_UIDS", "DRAIN_SECONDS", "MAX_CONNECTIONS"),
    *("PEERS", "PEERS_LISTEN", "PEERS_TOKEN_FILE", "PEERS_TLS_FOLDER"),
)
_SETTINGS = (*ENGINE_VARIABLES, *SERVICE_VARIABLES)
# Kubernetes puts these into every container when a Service is called "streamer".
_KUBERNETES = re.compile(r"STREAMER_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)")


def check_variables(variables: Mapping[str, str] | None = None) -> None:
    """Refuses variables that begin with STREAMER_ and that streamer does not know: this process's if None is given.

    Raises:
        ConfigError: the message names the variable, and those that exist.
    """
    known = {f"STREAMER_{name}" for name in (*_COMMON, *_SETTINGS)}
    for name in os.environ if variables is None else variables:
        if name.startswith("STREAMER_") and name not in known and not _KUBERNETES.fullmatch(name):
            raise ConfigError(f"{name} is not a setting; there are {', '.join(sorted(known))}", field=name)


def check_socket_path(path: Path) -> Path:
    """Checks the length of a unix socket's path, and returns the path.

    Raises:
        ConfigError: it is too long for the kernel: sun_path has 108 bytes including the final zero (unix(7)).
    """
    if (length := len(os.fsencode(path))) > 107:
        raise ConfigError(
            f"the socket path {path} has {length} bytes, the kernel takes 107; set STREAMER_RUNTIME_DIR, or the "
            "service's socket_path, to a shorter one",
            field="runtime_dir",
        )
    return path


def read_token(path: Path) -> str:
    """Returns the token in a file, without the white space around it.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}", field="token_file") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty", field="token_file")
    return token


def _runtime_dir(env: Mapping[str, str]) -> Path:
    # It has to be short: a unix socket's path may have 107 bytes.
    if chosen := env.get("STREAMER_RUNTIME_DIR"):
        # A link that the user names is followed here, since no link is followed later.
        return Path(os.path.realpath(chosen))
    if (base := env.get("XDG_RUNTIME_DIR")) and os.access(base, os.W_OK):
        return Path(base) / "streamer"
    for base in ("/tmp", "/var/tmp", "/dev/shm"):
        path = Path(f"{base}/streamer-{os.getuid()}")
        if not _is_read_only(path if path.exists() else Path(base)):
            return path
    return Path(f"/tmp/streamer-{os.getuid()}")


def _is_read_only(path: Path) -> bool:
    """Whether a path is on a read-only file system, such as the root of a hardened container, or cannot be reached."""
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
    """Returns the rank's place; variables of streamer for job and nodes take precedence over those of launchers."""
    place = find_place(env)
    master = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}" if {"MASTER_ADDR", "MASTER_PORT"} <= set(env) else ""
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    # torchrun sets "none" for a run without a name.
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
        # A variable may have any bytes, a message of the protocol only UTF-8.
        job=job.encode("utf-8", "backslashreplace").decode(),
        master=env.get("MASTER_ADDR", ""),
        note=place.note,
    )


def read_toml(path: Path) -> dict[str, object]:
    """Returns the tables of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or it is not TOML; the message names the line.
    """
    import tomllib  # Here, because it takes 2 ms of each start, and few have such a file.

    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field=str(path)) from error
    except (ValueError, RecursionError) as error:  # of TOML, or bytes that are not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}", field=str(path)) from error


def check_fields(kind: type[object], values: Mapping[str, object], where: str) -> None:
    """Checks the names of settings, not their values, against the fields of the dataclass `kind`.

    Raises:
        ConfigError: there is no such field; the message begins with `where`, and lists the fields.
    """
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no setting {name!r}; it has {', '.join(sorted(names))}", field=name)

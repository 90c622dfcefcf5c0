"""Reads the configuration of an engine: a TOML file, overridden by STREAMER_* variables and by options.

`cli/serve_command.py` reads that of a service by it, and `embedded.py` that of an engine that a client starts.

    [cache]     directory limit_bytes group free_floor_bytes free_floor_share layers
    [fetch]     memory_bytes window_max range_bytes ...
    [engine]    socket_path lookahead_bytes silent_seconds ...
    [service]   http allow_uids token_file drain_seconds max_connections
    [peers]     members listen token_file tls_folder sends
    [[datasets]]  url, storage_options or storage_options_file (JSON), writable

Every name is a field of the dataclass of that section in `streamer.config`, in [fetch] one of `FETCH_SETTINGS`; other
names are refused. A variable of the environment has a row in `ENGINE_VARIABLES` there, and in `_PLACES` here.
"""

from __future__ import annotations

import json
import logging
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

from streamer.base.user_urls import take_logins
from streamer.config import (
    FETCH_SETTINGS,
    CacheConfig,
    DatasetConfig,
    EngineConfig,
    Environment,
    FetchConfig,
    PeersConfig,
    ServiceConfig,
    check_fields,
    parse_bytes,
    read_toml,
)
from streamer.errors import ConfigError

logger = logging.getLogger(__name__)

_SECTIONS: dict[str, type[object]] = {
    "cache": CacheConfig,
    "fetch": FetchConfig,
    "engine": EngineConfig,
    "service": ServiceConfig,
    "peers": PeersConfig,
}
# Fields of EngineConfig that are not settings of [engine]: they have a section of their own, or the code sets them.
_ELSEWHERE = frozenset(
    ["cache", "fetch", "datasets", "service", "peers", "grace_seconds", "refuse_local", "secret_files"]
)
# The field that a variable of `Environment.settings`, or an option of the command line, sets.
_PLACES = {
    "cache_dir": ("cache", "directory"),
    "cache_bytes": ("cache", "limit_bytes"),
    "group": ("cache", "group"),
    "memory_bytes": ("fetch", "memory_bytes"),
    "fetch_processes": ("engine", "fetch_processes"),
    "socket": ("engine", "socket_path"),
    "http": ("service", "http"),
    "allow_uids": ("service", "allow_uids"),
    "token_file": ("service", "token_file"),
    "drain_seconds": ("service", "drain_seconds"),
    "max_connections": ("service", "max_connections"),
    "peers": ("peers", "members"),
    "peers_listen": ("peers", "listen"),
    "peers_token_file": ("peers", "token_file"),
    "peers_tls_folder": ("peers", "tls_folder"),
}
# No setting is larger than 2**53, up to which floats have all whole numbers.
_MAX_NUMBER = 1 << 53
# Loopback; 9464 is the customary port of exporters (prometheus/prometheus wiki, default port allocations).
DEFAULT_HTTP = "127.0.0.1:9464"

_Config = TypeVar("_Config")
_Tables = dict[str, dict[str, object]]


def read_service_config(path: Path | None, environment: Environment, options: Mapping[str, object]) -> EngineConfig:
    """Returns the complete configuration of a service.

    Args:
        path: TOML file, or None for environment and options only.
        environment: its settings, its token file and the cache folder that it names take precedence over the file.
            A line is logged where the file names another cache folder. Its default of the cache folder, and its runtime
            folder, are used where nothing else names the cache folder and the socket.
        options: options of the command line by the names of `_PLACES`, None where not given. They take precedence over
            all.

    Raises:
        ConfigError: a setting is unknown or invalid, and the message names it; or a file cannot be read.
    """
    tables, datasets, files = _read_file(path)
    variables = {"token_file": environment.token_file}
    if environment.has_cache_dir:
        variables["cache_dir"] = environment.cache_dir
        if options.get("cache_dir") is None:
            _warn_of_other_folder(tables["cache"].get("directory"), path, environment.cache_dir)
    for source in (environment.settings, variables, options):
        _override(tables, source)
    tables["cache"].setdefault("directory", environment.cache_dir)
    tables["engine"].setdefault("socket_path", environment.runtime_dir / "engine.sock")
    tables["service"].setdefault("http", DEFAULT_HTTP)
    config = _assemble(tables, datasets)
    token = [] if config.service.token_file is None else [config.service.token_file]
    return replace(config, secret_files=(*files, *token))


def read_trainer_config(path: Path | None, variables: Mapping[str, str], engine: EngineConfig) -> EngineConfig:
    """Returns the configuration of an engine that a trainer starts: [cache], [fetch] and [engine] of a file.

    Args:
        path: TOML file, which may have other sections for a service; None for none.
        variables: settings of the environment (`Environment.engine_settings`), which take precedence over the file.
        engine: settings of the trainer. Its folder, socket, limit (if set), service, peers and grace time take
            precedence over all.

    Raises:
        ConfigError: see `read_service_config`.
    """
    tables, _, _ = _read_file(path)
    _override(tables, variables)
    tables["cache"]["directory"] = engine.cache.directory
    if engine.cache.limit_bytes is not None:
        tables["cache"]["limit_bytes"] = engine.cache.limit_bytes
    tables["engine"]["socket_path"] = engine.socket_path
    file = _assemble(tables, ())
    return replace(
        file, service=engine.service, peers=engine.peers, refuse_local=False, grace_seconds=engine.grace_seconds
    )


def _override(tables: _Tables, settings: Mapping[str, object]) -> None:
    """Puts settings of the environment or the command line into the tables of a file, except those that are None."""
    for name, value in settings.items():
        if value is not None:
            section, field = _PLACES[name]
            tables[section][field] = value


def _warn_of_other_folder(directory: object, path: Path | None, chosen: Path) -> None:
    """Logs that STREAMER_CACHE_DIR counts where the file at `path` names another folder: images and units set it."""
    if isinstance(directory, str) and os.path.abspath(directory) != str(chosen):
        logger.warning(
            "the cache folder is %s, as STREAMER_CACHE_DIR says, and not %s, as %s says: unset or change the variable, "
            "or use --cache-dir",
            chosen,
            directory,
            path,
        )


def _assemble(tables: _Tables, datasets: tuple[DatasetConfig, ...]) -> EngineConfig:
    """Returns the configuration of a service with these settings; raises ConfigError if one is unknown or invalid."""
    cache = _make_section(CacheConfig, tables["cache"], "[cache]")
    engine = _make_section(EngineConfig, {**tables["engine"], "cache": cache}, "[engine]", _ELSEWHERE)
    return replace(
        engine,
        cache=replace(cache, directory=Path(os.path.abspath(cache.directory))),
        socket_path=Path(os.path.abspath(engine.socket_path or "")),
        fetch=_make_section(FetchConfig, tables["fetch"], "[fetch]"),
        service=_make_section(ServiceConfig, tables["service"], "[service]"),
        peers=_make_section(PeersConfig, tables["peers"], "[peers]"),
        datasets=datasets,
        # Clients of a service without datasets choose the urls.
        refuse_local=not datasets,
        grace_seconds=None,
    )


def _read_file(path: Path | None) -> tuple[_Tables, tuple[DatasetConfig, ...], list[Path]]:
    """Reads a configuration file; without a path all is empty.

    Returns:
        The tables of settings by section, the datasets, and the files of storage options that were read.

    Raises:
        ConfigError: a section or setting is unknown or invalid.
    """
    tables: _Tables = {name: {} for name in _SECTIONS}
    if path is None:
        return tables, (), []
    found = read_toml(path)
    datasets = found.pop("datasets", [])
    for name, table in found.items():
        if name not in _SECTIONS:
            raise ConfigError(f"{path} has no section [{name}]; it has {', '.join(_SECTIONS)}, datasets", field=name)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is a section: write [{name}] and its settings below", field=name)
        for field in table.keys() & _ELSEWHERE if name == "engine" else ():
            raise ConfigError(f"{path}: [engine] has no setting {field!r}", field=field)
        for setting in table if name == "fetch" else ():
            if setting not in FETCH_SETTINGS:
                fixed = {field.name: field.default for field in fields(FetchConfig)}
                why = f"has no setting {setting!r}"
                if setting in fixed:
                    why = f"{setting} is fixed at {fixed[setting]} now; remove it"
                raise ConfigError(f"{path}: [fetch] {why}; it has {', '.join(FETCH_SETTINGS)}", field=setting)
        tables[name].update(table)
    if not isinstance(datasets, list):
        raise ConfigError(f"{path}: write [[datasets]] for each dataset", field="datasets")
    files: list[Path] = []
    return tables, tuple(_make_dataset(entry, path, files) for entry in datasets), files


# ---------------------------------------------------------------- datasets


def _make_dataset(entry: object, path: Path, files: list[Path]) -> DatasetConfig:
    """Returns one entry of [[datasets]], and adds its file of options, if it has one, to `files`.

    Raises:
        ConfigError: a setting is unknown or invalid, or the file cannot be read.
    """
    where = f"[[datasets]] of {path}"
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str) or not entry["url"]:
        raise ConfigError(f"{where}: each has a url", field="url")
    values = dict(entry)
    if not isinstance(values.get("storage_options", {}), dict):
        raise ConfigError(f"{where}: storage_options is a table", field="storage_options")
    file = values.pop("storage_options_file", None)
    if file is not None:
        files.append(Path(str(file)))
        values["storage_options"] = {**values.get("storage_options", {}), **_read_options(files[-1])}
    check_fields(DatasetConfig, values, where)
    if not isinstance(values.get("writable", False), bool):
        raise ConfigError(f"{where}: writable is true or false", field="writable")
    (values["url"],), values["storage_options"] = take_logins([values["url"]], values.get("storage_options", {}))
    return DatasetConfig(**values)


def _read_options(path: Path) -> dict[str, object]:
    """Returns the storage options in a JSON file; raises ConfigError if it cannot be read, or is no JSON object."""
    # Neither the content nor the parser's complaint is shown: it would quote the secret.
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field="storage_options_file") from error
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON", field="storage_options_file") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object", field="storage_options_file")
    return found


# ---------------------------------------------------------------- one section


def _make_section(
    kind: type[_Config], values: Mapping[str, object], where: str, elsewhere: frozenset[str] = frozenset()
) -> _Config:
    """Returns the dataclass of a section, with the values of the fields in `elsewhere` taken as they are.

    Raises:
        ConfigError: a name or a value is wrong. `where` begins its text.
    """
    check_fields(kind, values, where)
    hints = typing.get_type_hints(kind)
    return kind(
        **{name: value if name in elsewhere else _coerce(name, value, hints[name]) for name, value in values.items()}
    )


def _coerce(name: str, value: object, hint: object) -> object:
    """Returns a setting in the type of its field. A value from TOML has a type already, one of a variable is a text.

    Args:
        name: Name of the setting.
        value: The value; "auto" gives None where the field allows None.
        hint: Type of the field.

    Raises:
        ConfigError: the value does not fit.
    """
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
        if value == "auto":
            return None
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{name}={value!r} is a list", field=name)
        return tuple(_convert(name, part, get_args(hint)[0]) for part in parts)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(str, get_args(hint)))}", field=name)
        return value
    return _convert(name, value, hint)


def _convert(name: str, value: object, kind: object) -> object:
    """Returns one value in the type `kind`; a setting that ends in `_bytes` may be a text such as "8 GiB".

    Raises:
        ConfigError: the value does not fit.
    """
    if kind is int and name.endswith("_bytes") and isinstance(value, int | str) and not isinstance(value, bool):
        return parse_bytes(value, name)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is str and isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{name}={value!r} is true or false", field=name)
    if kind in (int, float):
        return _convert_number(name, value, whole=kind is int)
    raise ConfigError(f"{name}={value!r} is not what it should be", field=name)


def _convert_number(name: str, value: object, *, whole: bool) -> int | float:
    """Returns a number of 0 to 2**53, of at most 1 if the setting's name ends in `_share`; ConfigError for others."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number: int | float = int(value) if whole else float(value)
        except (ValueError, OverflowError):
            number = -1
        if (
            0 <= number <= _MAX_NUMBER
            and (not whole or not isinstance(value, float))
            and (number <= 1 or not name.endswith("_share"))
        ):
            return number
    wanted = "share between 0 and 1" if name.endswith("_share") else f"{'whole ' * whole}number of at least 0, finite"
    raise ConfigError(f"{name}={value!r} is not a {wanted}", field=name)

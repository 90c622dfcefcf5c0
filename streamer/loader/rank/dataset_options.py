"""The options of a stream and of a dataset, checked when it is constructed, used at the first I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, get_args

import msgspec

from streamer.absolute import absolute as from_root
from streamer.annotations.options import Annotations
from streamer.client.settings import ClientSettings
from streamer.config import Environment, RankConfig, parse_bytes
from streamer.decode.dispatch import DecodeRule, check_rule
from streamer.errors import ConfigError
from streamer.formats import AUTO
from streamer.formats.base import Format
from streamer.formats.names import field_name
from streamer.formats.registry import find_format
from streamer.loader import checks
from streamer.loader.samples.maker import Transform
from streamer.loader.skipping import OnError
from streamer.order.growing import Growing
from streamer.order.plan import LastBatch
from streamer.order.spec import Cut, shuffle_mode
from streamer.wire.messages import GetManifest

OnChange = Literal["raise", "refresh"]
OnDamage = Literal["raise", "skip"]
Peers = Literal["off", "auto"]

# Urls that a message names.
_NAMED = 4

# "s3:/bucket"; a folder of such a name is "./s3:".
_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|az|abfss?|https?|file):/", re.IGNORECASE)

_LEAST = {
    "batch_size": 1,
    "lanes": 1,
    "shuffle_window": 1,
    "seed": 0,
    "error_budget": 0,
    "rank": 0,
    "world_size": 1,
}
# shuffle="sample" needs one chunk per sample; the builder makes no smaller chunks than this.
_LEAST_CHUNK_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The arguments that `StreamingDataset` and `MixedDataset` have in common, which document them."""

    seed: int = 17
    batch_size: int | None = None
    last_batch: LastBatch | None = None
    lanes: int | None = None
    shuffle_window: int | None = None
    rank: int | None = None
    world_size: int | None = None
    on_error: OnError = "raise"
    error_budget: int = 100
    stream: str = ""

    def __post_init__(self) -> None:
        checks.one_of("on_error", self.on_error, ("raise", "skip"))
        for name, least in _LEAST.items():
            self._set_at_least(name, least)

    def _set_at_least(self, name: str, least: int) -> None:
        """Checks a whole number, and keeps it as Python's own."""
        if getattr(self, name) is not None:
            object.__setattr__(self, name, checks.at_least(name, getattr(self, name), least))

    def with_rank(self, rank_config: RankConfig) -> Self:
        """The same options with this rank and world size."""
        return replace(self, rank=rank_config.rank, world_size=rank_config.world_size)


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(StreamOptions):
    """The arguments of `StreamingDataset`, which documents them."""

    urls: tuple[str, ...]
    manifest: str | None = None
    format: str | Format = "auto"
    cache_dir: str | None = None
    cache_bytes: str | int = "auto"
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    shuffle: bool | str = True
    cut: Cut | None = None
    decode: DecodeRule = "auto"
    transform: Transform | None = None
    allow_pickle: bool = False
    engine: str | None = None
    index_limit: float = 600.0
    on_change: OnChange = "raise"
    extensions: str | Sequence[str] | None = None
    index_errors: OnDamage = "raise"
    growing: Growing | None = None
    annotations: Annotations | None = None
    peers: Peers = "off"

    def __post_init__(self) -> None:
        _check_urls(self.urls)
        shuffle_mode(self.shuffle)
        check_rule(self.decode)
        self._check_format()
        super().__post_init__()
        checks.one_of("index_errors", self.index_errors, ("raise", "skip"))
        self.sample_extensions()
        checks.one_of("on_change", self.on_change, ("raise", "refresh"))
        checks.one_of("cut", self.cut, (None, *get_args(Cut)))
        checks.one_of("peers", self.peers, get_args(Peers))
        checks.flag("allow_pickle", self.allow_pickle)
        checks.seconds("index_limit", self.index_limit)
        checks.function("transform", self.transform)
        self._check_manifest()
        self.limit_bytes()
        self._check_growing()

    def _check_format(self) -> None:
        given: object = self.format
        if not isinstance(given, str | Format):
            raise ConfigError(
                f"format={given!r}: give a name, or a format with options as streamer.formats has them", field="format"
            )
        if isinstance(given, str) and given != AUTO:
            find_format(given)

    @property
    def format_name(self) -> str:
        """Name of the format, or "auto"."""
        return self.format if isinstance(self.format, str) else self.format.name

    def _check_manifest(self) -> None:
        # A manifest that does not exist is built there: its files would be samples of the next listing.
        for url in self.urls if self.manifest is not None else ():
            manifest, data = absolute(self.manifest or "").rstrip("/"), absolute(url).rstrip("/")
            if manifest == data or manifest.startswith(data + "/"):
                raise ConfigError(
                    f"manifest={self.manifest!r} is inside the dataset {url!r}; a manifest that is built there would "
                    "become part of the data: name another folder",
                    field="manifest",
                )

    @property
    def place(self) -> str:
        """The urls, for messages: the first ones of many."""
        named = ", ".join(self.urls[:_NAMED])
        return named if len(self.urls) <= _NAMED else f"{named} and {len(self.urls) - _NAMED} more"

    def _check_growing(self) -> None:
        if self.growing is None:
            return
        if not isinstance(self.growing, Growing):
            raise ConfigError(f"growing={self.growing!r} is no streamer.Growing", field="growing")
        if self.on_change == "refresh":
            raise ConfigError(
                'growing= with on_change="refresh": the uses of a changed dataset cannot be level; begin a new run',
                field="growing",
            )
        if shuffle_mode(self.shuffle) == "none":
            raise ConfigError("growing= with shuffle=False: samples are admitted in random order", field="growing")
        if self.cut is not None:
            raise ConfigError(f"growing= with cut={self.cut!r}: its lanes follow from the seed", field="cut")
        if self.peers != "off":
            raise ConfigError(
                f"growing= with peers={self.peers!r}: run the engines as services with [peers] members", field="peers"
            )

    def sample_extensions(self) -> list[str] | None:
        """The extensions of the raw files that are samples, in one spelling, sorted; None: chosen by what is there.

        Raises:
            ConfigError: no extensions, or containers.
        """
        given: object = self.extensions
        if given is None:
            return None
        several = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
        names = [name.lstrip(".") if isinstance(name, str) else "" for name in several]
        if not names or not all(names):
            raise ConfigError(f"extensions={given!r}: give a list as ['jpg', 'png']", field="extensions")
        if self.format_name not in {AUTO, "folder"}:
            raise ConfigError(
                f"extensions={given!r} is for raw files, not for format={self.format_name!r}", field="extensions"
            )
        return sorted(set(map(field_name, names)))

    def limit_bytes(self) -> int | None:
        """The cache's limit; None: the engine chooses.

        Raises:
            ConfigError: not a size.
        """
        return None if self.cache_bytes == "auto" else parse_bytes(self.cache_bytes, "cache_bytes")

    @property
    def free_parts(self) -> frozenset[str]:
        """The parts of the order that are chosen automatically."""
        given = {"lanes": self.lanes, "window": self.shuffle_window, "cut": self.cut}
        return frozenset(part for part, value in given.items() if value is None)

    def client_settings(self, environment: Environment, job: str) -> ClientSettings:
        """The settings of the client; `job` is used if the environment names none."""
        settings = ClientSettings.from_environment(environment)
        return replace(
            settings,
            cache_dir=settings.cache_dir if self.cache_dir is None else Path(os.path.abspath(self.cache_dir)),
            engine=settings.engine if self.engine is None else self.engine,
            cache_bytes=self.limit_bytes(),
            storage_options=dict(self.storage_options),
            job=settings.job or job,
        )

    def manifest_request(self, rank_config: RankConfig) -> GetManifest:
        """The request for the manifest. Only the first node builds it; the others wait for it to appear."""
        return GetManifest(
            request=0,
            urls=[absolute(url) for url in self.urls],
            format=self.format_name,
            format_options=b"{}" if isinstance(self.format, str) else msgspec.json.encode(self.format.options),
            manifest="" if self.manifest is None else absolute(self.manifest),
            build=rank_config.node == 0,
            chunk_bytes=_LEAST_CHUNK_BYTES if shuffle_mode(self.shuffle) == "sample" else 0,
            limit_seconds=self.index_limit,
            extensions=self.sample_extensions(),
            skip_damaged=self.index_errors == "skip",
            in_key_order=shuffle_mode(self.shuffle) == "none",
        )


class FixedArguments:
    """Refuses to set attributes of a dataset where that would have no effect."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in DatasetOptions.__dataclass_fields__ or name == "url":
            advice = "dataset.select(transform=...) returns a dataset with another one"
            raise AttributeError(
                f"{name} of a StreamingDataset is fixed when it is constructed: "
                f"{advice if name == 'transform' else 'construct another dataset'}"
            )
        # A class that is made from it may have attributes of its own.
        if type(self).__module__.startswith("streamer.") and not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} that can be set")
        super().__setattr__(name, value)


def as_urls(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """One url or several, as texts.

    Raises:
        ConfigError: something else.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given
    try:
        return tuple(os.fspath(url) for url in several)
    except TypeError as error:
        raise ConfigError(f"url={given!r} is no url, path or sequence of them", field="url") from error


def absolute(url: str) -> str:
    """A local path from the root on (the engine runs in another folder); other urls with their scheme in lower case.

    Raises:
        ConfigError: a scheme with one slash, which would be a local path.
    """
    if "://" not in url and (slip := _ONE_SLASH.match(url)):
        raise ConfigError(
            f"{url!r} is not a url: write {slip[1].lower()}://{url[slip.end() :]} as text (pathlib.Path drops a slash)",
            field="url",
        )
    return from_root(os.path.expanduser(url))


def _check_urls(urls: tuple[str, ...]) -> None:
    if not urls or not all(urls):
        raise ConfigError(f"url={list(urls)!r}: give a prefix, or a list of them", field="url")
    for url in urls:
        absolute(url)

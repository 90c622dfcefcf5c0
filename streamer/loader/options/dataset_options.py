"""Keeps the options of a dataset, and those that a mix has, too: checked when it is constructed, used at the first I/O.

`loader/dataset.py` makes `DatasetOptions`, and `loader/members/member.py` opens a dataset by them. Commands of `cli/`
and `tools/` use the functions on urls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import msgspec

from streamer.annotations.options import Annotations
from streamer.annotations.table import ANNOTATIONS
from streamer.base.user_urls import absolute as from_root
from streamer.base.user_urls import shown, take_logins
from streamer.batches import checks
from streamer.batches.rows.balance import NO_BALANCE, AnyBalance
from streamer.batches.rows.options import NO_PACKING, AnyPacking
from streamer.batches.samples.maker import Transform
from streamer.batches.skipping import OnError, SkipRules
from streamer.client.settings import ClientSettings
from streamer.config import Environment, RankConfig, parse_bytes
from streamer.decode.rule import Decode
from streamer.errors import ConfigError
from streamer.formats import AUTO
from streamer.formats.base import Format
from streamer.formats.registry import find_format
from streamer.loader.options.arguments import Index, Order, Sharing, Skip, skip_rules
from streamer.order.growing import NOT_GROWING, AnyGrowing
from streamer.order.spec import shuffle_mode
from streamer.wire.messages import GetManifest

# Number of urls that a message names.
_NAMED = 4

# Matches a url with one slash, "s3:/bucket"; a folder of such a name is "./s3:".
_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|az|abfss?|https?|file):/", re.IGNORECASE)

# Smallest values of the options that are whole numbers.
_LEAST = {
    "batch_size": 1,
    "seed": 0,
    "rank": 0,
    "world_size": 1,
}
# shuffle="sample" needs one chunk per sample; the builder makes no smaller chunks than this.
_LEAST_CHUNK_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Holds the arguments that `StreamingDataset` and `MixedDataset` have in common, which document them.

    Raises:
        ConfigError: an invalid value.
    """

    seed: int = 17
    batch_size: int | None = None
    order: Order = field(default_factory=Order)
    rank: int | None = None
    world_size: int | None = None
    on_error: OnError | Skip = "raise"

    def __post_init__(self) -> None:
        skip_rules(self.on_error)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None:
                # A number of numpy or torch is kept as one of Python.
                object.__setattr__(self, name, checks.at_least(name, value, least))

    @property
    def skip_rules(self) -> SkipRules:
        """The rules for samples that cannot be made.

        Raises:
            ConfigError: `on_error` is neither "raise" nor "skip" nor a Skip.
        """
        return skip_rules(self.on_error)


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(StreamOptions):
    """Holds the arguments of `StreamingDataset`, which documents them.

    Raises:
        ConfigError: an invalid value, or values that do not go together.

    Attributes:
        chunk_bytes: Bytes of a chunk for the right side of a join, or 0 if the index chooses.
    """

    urls: tuple[str, ...]
    manifest: Index = field(default_factory=Index)
    format: str | Format = "auto"
    cache_dir: str | None = None
    cache_bytes: str | int = "auto"
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    shuffle: bool | str = True
    decode: Decode = field(default_factory=Decode)
    transform: Transform | None = None
    engine: str | None = None
    growing: AnyGrowing = NOT_GROWING
    annotations: Annotations | None = None
    packing: AnyPacking = NO_PACKING
    balance: AnyBalance = NO_BALANCE
    share_caches: Sharing = "off"
    chunk_bytes: int = 0

    def __post_init__(self) -> None:
        self._take_logins()
        if not self.urls or not all(self.urls):
            named = [shown(url) for url in self.urls[:_NAMED]]
            raise ConfigError(f"url={named!r}: give a prefix, or a list of them", field="url")
        for url in self.urls:
            absolute(url)
        mode = shuffle_mode(self.shuffle)
        given: object = self.format
        if not isinstance(given, str | Format):
            raise ConfigError(
                f"format={given!r}: give a name, or a format with options as streamer.formats has them", field="format"
            )
        if isinstance(given, str) and given != AUTO:
            find_format(given)
        super().__post_init__()
        checks.function("transform", self.transform)
        checks.one_of("share_caches", self.share_caches, get_args(Sharing))
        # A manifest that does not exist is built there: its files would be samples of the next listing.
        target = self.manifest.url_text
        for url in self.urls if target is not None else ():
            manifest = absolute(target or "").rstrip("/")
            data = absolute(url).rstrip("/")
            if manifest == data or manifest.startswith(data + "/"):
                raise ConfigError(
                    f"manifest={shown(target or '')!r} is inside the dataset {shown(url)!r}; a manifest that is "
                    "built there would become part of the data: name another folder",
                    field="manifest",
                )
        self.limit_bytes()
        # Growing, balance and packing are checked against each other, and against the order.
        self.growing.check(
            on_change=self.manifest.on_change,
            shuffle=mode,
            lanes_by=self.order.lanes_by,
            share_caches=self.share_caches,
        )
        self.balance.check(mode, self.packing, self.growing)
        self.packing.check(mode)

    def _take_logins(self) -> None:
        """Moves the logins of all urls into the storage options: urls are shown and stored, options are not."""
        manifest = self.manifest.url_text
        annotations = self.annotations
        beside = ("" if manifest is None else manifest, "" if annotations is None else annotations.url)
        (*urls, manifest_url, annotations_url), options = take_logins((*self.urls, *beside), self.storage_options)
        if options is self.storage_options:
            return
        object.__setattr__(self, "urls", tuple(urls))
        object.__setattr__(self, "storage_options", options)
        if manifest is not None:
            object.__setattr__(self, "manifest", replace(self.manifest, url=manifest_url))
        if annotations is not None:
            object.__setattr__(self, "annotations", replace(annotations, url=annotations_url))

    @property
    def format_name(self) -> str:
        """Name of the format, or "auto"."""
        return self.format if isinstance(self.format, str) else self.format.name

    @property
    def place(self) -> str:
        """The urls as a text for messages, without logins; of more than four the first ones and their number."""
        named = ", ".join(shown(url) for url in self.urls[:_NAMED])
        return named if len(self.urls) <= _NAMED else f"{named} and {len(self.urls) - _NAMED} more"

    def limit_bytes(self) -> int | None:
        """Returns the cache's limit in bytes, or None if the engine chooses.

        Raises:
            ConfigError: `cache_bytes` is not a size.
        """
        return None if self.cache_bytes == "auto" else parse_bytes(self.cache_bytes, "cache_bytes")

    def client_settings(self, environment: Environment, job: str) -> ClientSettings:
        """Returns the settings of the client: those of the environment, and what the user has given in their place.

        Args:
            environment: Parsed environment.
            job: Name of the job if the environment has none.

        Raises:
            ConfigError: a variable is not what it should be, or `cache_bytes` is not a size.
        """
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
        """Returns the request for the manifest. Only node 0 builds one at `manifest=`; the others wait for it.

        Raises:
            ConfigError: the scheme of a url is followed by one slash, or `shuffle` is another word.
        """
        given = None if isinstance(self.format, str) else self.format
        chosen = None if given is None else given.chosen_extensions
        return GetManifest(
            request=0,
            urls=[absolute(url) for url in self.urls],
            format=self.format_name if given is None else given.requested_name,
            format_options=b"{}" if given is None else msgspec.json.encode(given.options),
            manifest="" if self.manifest.url_text is None else absolute(self.manifest.url_text),
            build=rank_config.node == 0,
            chunk_bytes=_LEAST_CHUNK_BYTES if shuffle_mode(self.shuffle) == "sample" else self.chunk_bytes,
            limit_seconds=self.manifest.max_seconds,
            extensions=None if chosen is None else sorted(chosen),
            skip_damaged=self.manifest.damaged == "skip",
            in_key_order=shuffle_mode(self.shuffle) == "none",
        )


def table_request(annotations: Annotations) -> GetManifest:
    """Returns the request for the table of annotations, which the engine finds or makes.

    Raises:
        ConfigError: see `absolute`.
    """
    options = {"key": annotations.key, "fields": None if annotations.fields is None else list(annotations.fields)}
    return GetManifest(0, [absolute(annotations.url)], ANNOTATIONS, format_options=msgspec.json.encode(options))


class FixedArguments:
    """Refuses to set attributes of a dataset where that would have no effect: raises AttributeError."""

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


def list_urls(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Returns one url or several, as texts.

    Raises:
        ConfigError: the argument is neither a url or path nor a sequence of them.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given
    if isinstance(several, set | frozenset):
        raise ConfigError(
            f"url= is a set of {len(several)} urls, whose order differs between processes: give a list", field="url"
        )
    try:
        return tuple(os.fspath(url) for url in several)
    except TypeError as error:
        # Other values of a sequence are not shown: one may have a login.
        text = f"a {type(given).__name__} of other things" if isinstance(given, list | tuple) else repr(given)
        raise ConfigError(f"url={text} is not a url, path or sequence of them", field="url") from error


def absolute(url: str) -> str:
    """Returns a url as the engine needs it: a local path from the root on, another url with its scheme in lower case.

    Raises:
        ConfigError: the scheme is followed by one slash, which would make the url a local path.
    """
    if "://" not in url and (slip := _ONE_SLASH.match(url)):
        text = shown(url)
        right = f"{slip[1].lower()}://{text[slip.end() :]}"
        raise ConfigError(
            f"{text!r} is not a url: write {right} as text (pathlib.Path drops a slash)",
            field="url",
        )
    return from_root(os.path.expanduser(url))

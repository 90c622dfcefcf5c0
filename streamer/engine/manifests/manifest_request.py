"""A client's request for a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

# Raised when other files become samples of the same listing: what was found before is not looked for.
_FILE_RULES = "files 4"


class ManifestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a manifest; see `wire.messages.GetManifest`.

    Attributes:
        endpoint: the place that the options name, where several users share the engine; see `UrlAllowlist.endpoint`.
    """

    urls: tuple[str, ...]
    format: str = "auto"
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    manifest: str = ""
    build: bool = True
    chunk_bytes: int | None = None
    limit_seconds: float = 600.0
    wait_seconds: float = 1800.0
    extensions: tuple[str, ...] | None = None
    skip_damaged: bool = False
    in_key_order: bool = False
    format_options: Mapping[str, object] = msgspec.field(default_factory=dict)
    endpoint: str = ""

    def __repr__(self) -> str:
        # Not the options: they may be secret.
        return f"ManifestRequest({self.urls}, format={self.format!r}, manifest={self.manifest!r})"

    @property
    def identity(self) -> tuple[object, ...]:
        """A value that is equal for requests that have the same answer."""
        return (self.urls, self.format_text, self.manifest, self.chunk_bytes, *self._choices, *self._place)

    @property
    def container_source(self) -> tuple[object, ...]:
        """A value that is equal for requests for which the same manifest of containers is built."""
        choices = ("skip damaged",) if self.skip_damaged else ()
        return (self.urls, self.format_text, self.chunk_bytes, *choices, *self._place)

    @property
    def file_source(self) -> tuple[object, ...]:
        """A value that is equal for requests for which the same manifest of raw files is built."""
        rules = (_FILE_RULES, self.extensions, self.in_key_order)
        return (self.urls, self.format_text, self.chunk_bytes, *rules, *self._place)

    @property
    def format_text(self) -> str:
        """Name and options of the format."""
        return self.format + (json.dumps(self.format_options, sort_keys=True) if self.format_options else "")

    @property
    def _choices(self) -> tuple[object, ...]:
        chosen = (self.extensions, self.skip_damaged, self.in_key_order)
        return chosen if any(choice not in {None, False} for choice in chosen) else ()

    @property
    def _place(self) -> tuple[object, ...]:
        return (f"at {self.endpoint}",) if self.endpoint else ()

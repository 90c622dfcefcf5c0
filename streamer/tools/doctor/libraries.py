"""Checks the optional libraries: the extras of this distribution, as listed in its own metadata."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata

from streamer.tools.doctor.finding import Finding

_DISTRIBUTION = "streamer-data"
_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
# These extras are for developers of streamer.
_NOT_SHOWN = ("dev", "demo", "fuzz")


def library_findings() -> Iterator[Finding]:
    """Yields each extra with the installed versions, or with what is missing."""
    try:
        required = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding("warning", "extras", f"{_DISTRIBUTION} is not installed, only importable", "pip install .")
        return
    for extra, names in sorted(extras(required).items()):
        versions = {name: _version(name) for name in names}
        if missing := sorted(name for name, version in versions.items() if version is None):
            advice = f"pip install '{_DISTRIBUTION}[{extra}]' where it is needed"
            yield Finding("optional", extra, f"no {', '.join(missing)}", advice)
        else:
            yield Finding("ok", extra, ", ".join(f"{name} {version}" for name, version in sorted(versions.items())))


def extras(required: list[str]) -> dict[str, list[str]]:
    """Returns the distributions of each extra in requirements with markers, without extras that consist of others."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in required:
        extra = _EXTRA.search(line)
        name = _NAME.match(line)
        if extra is not None and name is not None and extra[1] not in _NOT_SHOWN and name[0] != _DISTRIBUTION:
            found[extra[1]].append(name[0])
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

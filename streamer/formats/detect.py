"""Which format: by its name, or by the names of the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from streamer.errors import ConfigError
from streamer.formats.base import Format
from streamer.formats.folder import Folder, class_folders, counted
from streamer.formats.foreign import refuse_foreign
from streamer.formats.names import is_common, is_hidden
from streamer.formats.webdataset import WebDataset

FORMATS: dict[str, Format] = {kind.name: kind for kind in (Folder(), WebDataset())}
AUTO = "auto"


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        ConfigError: there is none; lists those there are.
    """
    if (found := FORMATS.get(name)) is None:
        raise ConfigError(
            f"format={name!r} is not known; it is {', '.join(sorted(FORMATS))} or {AUTO}",
            field="format",
        )
    return found


def chooser(
    name: str, extensions: Iterable[str] | None = None, on_note: Callable[[str], None] = lambda note: None
) -> Callable[[Iterable[str]], Format]:
    """The builder's choice of the format: `name` as given, or found from the object names if "auto".

    Args:
        name: of the format.
        extensions: of the files that are samples (raw files only); None: see `folder.class_folders`.
        on_note: takes a line about files that are no samples.

    Raises:
        ConfigError: no such format.
    """
    fixed = None if name == AUTO else find_format(name)

    def choose(keys: Iterable[str]) -> Format:
        names = list(keys)
        if extensions is not None:
            return _named_files(names, Folder(extensions=frozenset(extensions)))
        found = fixed or FORMATS[detect(names)]
        return class_folders(names, on_note) if isinstance(found, Folder) else found

    return choose


def detect(keys: Sequence[str]) -> str:
    """Finds the format from object names: only tars are "webdataset", no tars are "folder".

    Hidden files and folder markers do not count.

    Raises:
        ConfigError: tars and other files together, or a dataset of another kind; says how many of which.
    """
    refuse_foreign(keys)
    tars = FORMATS["webdataset"]
    tar_keys = [key for key in keys if not is_common(key) and tars.accepts(key)]
    others = [key for key in keys if not is_hidden(key) and not tars.accepts(key)] if tar_keys else []
    if others:
        raise ConfigError(
            f"format='auto' found {len(tar_keys)} tars and other files ({counted(others)}); name the format: "
            "'webdataset' takes the tars only, 'folder' the files; extensions= says which of them",
            field="format",
            tars=len(tar_keys),
            others=len(others),
        )
    return "webdataset" if tar_keys else "folder"


def _named_files(keys: Sequence[str], chosen: Folder) -> Folder:
    if not any(map(chosen.accepts, keys)):
        wanted = ", ".join(sorted(chosen.extensions or ()))
        raise ConfigError(
            f"extensions={wanted}: none of the {len(keys)} files has one ({counted(keys)})", field="extensions"
        )
    return chosen

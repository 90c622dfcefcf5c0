"""Which format: by its name, or by the names of the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from streamer.errors import ConfigError
from streamer.formats import tar_index
from streamer.formats.base import Format
from streamer.formats.built_in import AUTO
from streamer.formats.folder import Folder, class_folders, counted, metadata_of
from streamer.formats.foreign import special_format
from streamer.formats.layouts import splits_in
from streamer.formats.names import is_common, is_hidden
from streamer.formats.registry import find_format
from streamer.formats.webdataset import WebDataset


def chooser(
    name: str,
    options: Mapping[str, object] | None = None,
    *,
    extensions: Iterable[str] | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Callable[[Iterable[str]], Format]:
    """The builder's choice of the format: `name` as given, or found from the object names if "auto".

    Args:
        name: of the format.
        options: of the format, where it is named.
        extensions: of the files that are samples (raw files only); None: see `folder.class_folders`.
        on_note: takes a line about files that are no samples.

    Raises:
        ConfigError: no such format, or it has other options. The choice raises it, too: for extensions that no file
            has, objects of several formats or of one that is not read, and, under "auto", several splits.
    """
    fixed = None if name == AUTO else find_format(name, options)

    def choose(keys: Iterable[str]) -> Format:
        names = list(keys)
        metadata = metadata_of(names) if fixed is None else ""
        names = [key for key in names if key != metadata] if metadata else names
        if extensions is not None:
            return _named_files(names, Folder(frozenset(extensions), metadata))
        found = fixed or find_format(detect(names))
        if isinstance(found, Folder):
            found = replace(class_folders(names, on_note), metadata=metadata)
        if splits := splits_in(filter(found.accepts, names), of_files=not found.whole_objects):
            _check_splits(splits, None if fixed is None else on_note)
        return found

    return choose


def _check_splits(splits: Sequence[str], on_note: Callable[[str], None] | None) -> None:
    """Refuses splits below one url, or, where the format is named, says that they are one dataset."""
    text = f"below one url are the splits {', '.join(splits)}"
    if on_note is not None:
        on_note(f"{text}: they are one dataset here; name the url of each for datasets of their own")
        return
    raise ConfigError(
        f"{text}; name the url of one of them (.../{splits[-1]}), or those of several in a list to take them together",
        field="urls",
        splits=len(splits),
    )


def detect(keys: Sequence[str]) -> str:
    """Finds the format from object names: by their endings; only tars are "webdataset", else it is "folder".

    Hidden files, folder markers and index files do not count.

    Raises:
        ConfigError: tars and other files together, or a dataset of another kind; says how many of which.
    """
    if found := special_format(keys):
        return found
    tars = WebDataset()
    tar_keys = [key for key in keys if not is_common(key) and tars.accepts(key)]
    others = [key for key in keys if not _belongs_to_tars(key, tars)] if tar_keys else []
    if others:
        raise ConfigError(
            f"format='auto' found {len(tar_keys)} tars and other files ({counted(others)}); name the format: "
            "'webdataset' takes the tars only, 'folder' the files; extensions= says which of them",
            field="format",
            tars=len(tar_keys),
            others=len(others),
        )
    return "webdataset" if tar_keys else "folder"


def _belongs_to_tars(key: str, tars: WebDataset) -> bool:
    return is_hidden(key) or tars.accepts(key) or key.lower().endswith(tar_index.ENDINGS[0])


def _named_files(keys: Sequence[str], chosen: Folder) -> Folder:
    if not any(map(chosen.accepts, keys)):
        wanted = ", ".join(sorted(chosen.extensions or ()))
        raise ConfigError(
            f"extensions={wanted}: none of the {len(keys)} files has one ({counted(keys)})", field="extensions"
        )
    return chosen

"""Recognizes tables that have a log of their valid rows: Delta Lake, Apache Iceberg, Hudi, Paimon.

The files of such a table also have rows that were deleted or written again, and only the log says which are valid.
Streamer does not read logs: the engine (`engine/manifests/table_logs.py`), `formats/detect.py` and the Parquet format
refuse such a table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_DELTA = "a Delta table"
_ICEBERG = "an Iceberg table"
_HUDI = "a Hudi table"
_PAIMON = "a Paimon table"
_LOGS = (
    (_DELTA, re.compile(r"(?:^|/)_delta_log/")),
    (
        _ICEBERG,
        re.compile(r"(?:^|/)metadata/(?:[^/]+\.metadata\.json(?:\.gz)?|[^/]+\.gz\.metadata\.json|version-hint\.text)$"),
    ),
    (_HUDI, re.compile(r"(?:^|/)\.hoodie(?:/|_partition_metadata)")),
    (_PAIMON, re.compile(r"(?:^|/)schema/schema-\d+$")),
)
_HOW = {
    _DELTA: "the files of the version that you want (deltalake: DeltaTable(path).file_uris())",
    _ICEBERG: "the files of a snapshot without deletes (pyiceberg: [task.file.file_path for task in "
    "table.scan().plan_files()])",
    _HUDI: "the newest slice of each file, as Hudi's reader lists them",
    _PAIMON: "the files of a snapshot, as Paimon's reader plans them",
}
_DATA = re.compile(r"\.(?:parquet|pq|parq|orc|avro)$", re.IGNORECASE)
# Folders of logs. They lie beside the data, or in a folder above.
_FOLDERS = ("_delta_log/", ".hoodie/")
# Folder of the data of an Iceberg table, and the folder of the log beside it.
_ICEBERG_DATA = "data"
_ICEBERG_LOG = "metadata/"
# Number of levels above a folder of partitions in which the log is looked for.
_LEVELS = 3
_GLOB = re.compile(r"[*?\[{]")


def table_log(keys: Iterable[str]) -> tuple[str, str] | None:
    """Returns the kind of a table ("a Delta table") and the first object that is a part of its log; None for no log."""
    for key in keys:
        # The regular expressions are only tried on names with one of these: few of a million have one.
        if "_delta_log" in key or "metadata" in key or ".hoodie" in key or "schema/schema-" in key:
            for kind, log in _LOGS:
                if log.search(key):
                    return kind, key
    return None


def has_table(keys: Collection[str]) -> tuple[str, str] | None:
    """Returns what `table_log` returns if the listing also has files of table data; else None."""
    found = table_log(keys)
    return found if found is not None and any(_DATA.search(key) for key in keys) else None


def find_writer(columns: Collection[str]) -> str | None:
    """Returns the kind of the table whose writer adds columns of these names to its files; None for other files."""
    if "_hoodie_commit_time" in columns and "_hoodie_record_key" in columns:
        return _HUDI
    return None


def refuse_table(kind: str, url: str) -> str:
    """Returns the text that refuses a table of this kind, of which `url` is a part."""
    return (
        f"{url} is a part of {kind}, whose log says which of its files and rows are valid; streamer does not read it: "
        f"name as urls {_HOW[kind]}, or write the table as plain Parquet"
    )


def has_data(keys: Iterable[str]) -> bool:
    """Whether any of the files has table data by its ending: Parquet, ORC or Avro."""
    return any(_DATA.search(key) for key in keys)


def logs_around(url: str, objects: Collection[str]) -> list[str]:
    """Returns urls of the folders that would hold the log, if the files of a dataset's url belong to a table.

    Args:
        url: a prefix or a pattern of the dataset.
        objects: urls of the objects that it names. If `url` itself is an object, the result is empty.
    """
    scheme, separator, path = url.rpartition("://")
    names = {each.rpartition("://")[2] for each in (url, *objects)} if len(objects) == 1 else set()
    if url in objects or (names and len(names) == 1):
        return []
    glob = _GLOB.search(path)
    stem = path[: path.rfind("/", 0, glob.start()) + 1] if glob else path
    parts = stem.rstrip("/").split("/")
    found = list[str]()
    # All objects below a prefix are listed anyway, so the folders above it are enough.
    for level in range(0 if glob else 1, _LEVELS + 1):
        # The loop ends at the root of a file system, or at the bucket.
        if len(parts) - level < 1 or not parts[len(parts) - level - 1]:
            break
        folder = f"{scheme}{separator}{'/'.join(parts[: len(parts) - level])}/"
        found += [folder + name for name in _FOLDERS]
        below = parts[len(parts) - level] if level else ""
        if below == _ICEBERG_DATA or (glob and not level):
            found.append(folder + _ICEBERG_LOG)
    return found

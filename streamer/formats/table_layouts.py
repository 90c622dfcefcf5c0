"""Tells tables whose valid rows are known to a log only: Delta Lake, Apache Iceberg, Hudi, Paimon.

The files of such a table have rows that were deleted or written again. What reads them without the log gets those, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_DELTA, _ICEBERG, _HUDI, _PAIMON = "a Delta table", "an Iceberg table", "a Hudi table", "a Paimon table"
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
# Folders of logs, beside the data or above.
_FOLDERS = ("_delta_log/", "metadata/", ".hoodie/")
_LEVELS = 3


def table_log(keys: Iterable[str]) -> tuple[str, str] | None:
    """Returns the kind of the table of whose log one of the objects is a part, and that object; None for none."""
    for key in keys:
        # Of a million names, few have one of these.
        if "_delta_log" in key or "metadata" in key or ".hoodie" in key or "schema/schema-" in key:
            for kind, log in _LOGS:
                if log.search(key):
                    return kind, key
    return None


def has_table(keys: Collection[str]) -> tuple[str, str] | None:
    """Does as `table_log`, of a listing that has data of a table, too."""
    found = table_log(keys)
    return found if found is not None and any(_DATA.search(key) for key in keys) else None


def written_by(columns: Collection[str]) -> str | None:
    """Returns the kind of the table whose writer adds such columns to its files; None for none."""
    if "_hoodie_commit_time" in columns and "_hoodie_record_key" in columns:
        return _HUDI
    return None


def refuse_table(kind: str, url: str) -> str:
    """Returns the refusal of a table, of which `url` is a part."""
    return (
        f"{url} is a part of {kind}, whose log says which of its files and rows are valid; streamer does not read it: "
        f"name as urls {_HOW[kind]}, or write the table as plain Parquet"
    )

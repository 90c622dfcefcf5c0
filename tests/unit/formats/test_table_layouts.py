"""Logs of tables (Delta, Iceberg, Hudi, Paimon): told by objects' names, and where they are looked for around a url."""

from __future__ import annotations

import pytest

from streamer.formats.table.layouts import logs_around, table_log


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("_delta_log/0000.json", "a Delta table"),
        ("s3://b/t/_delta_log/_last_checkpoint", "a Delta table"),
        ("metadata/00001-ab.metadata.json", "an Iceberg table"),
        ("t/metadata/v3.gz.metadata.json", "an Iceberg table"),
        ("t/metadata/version-hint.text", "an Iceberg table"),
        (".hoodie/hoodie.properties", "a Hudi table"),
        ("p=1/.hoodie_partition_metadata", "a Hudi table"),
        ("t/schema/schema-0", "a Paimon table"),
        ("metadata/labels.json", None),
        ("delta_log/0.json", None),
        ("metadata.json", None),
    ],
)
def test_logs_are_told_by_their_names(key: str, kind: str | None):
    """`table_log` names the kind of a table by its log's path; similar names of other data are no logs."""
    assert table_log(["a.parquet", key]) == (None if kind is None else (kind, key))


def test_logs_are_looked_for_around_patterns_and_folders():
    """Logs are looked for in the folders of a pattern and above a prefix, and nowhere for a single file."""
    assert logs_around("s3://b/t/p=1/", ["s3://b/t/p=1/a", "s3://b/t/p=1/b"]) == [
        *("s3://b/t/_delta_log/", "s3://b/t/.hoodie/", "s3://b/_delta_log/", "s3://b/.hoodie/"),
    ]
    assert logs_around("s3://b/t/data/*.parquet", ["s3://b/t/data/a", "s3://b/t/data/b"])[:5] == [
        *("s3://b/t/data/_delta_log/", "s3://b/t/data/.hoodie/", "s3://b/t/data/metadata/"),
        *("s3://b/t/_delta_log/", "s3://b/t/.hoodie/"),
    ]
    assert "s3://b/t/metadata/" in logs_around("s3://b/t/data/*.parquet", ["s3://b/t/data/a"])
    assert logs_around("s3://b/t/a.parquet", ["s3://b/t/a.parquet"]) == []
    assert logs_around("/t", ["/t/a"]) == []

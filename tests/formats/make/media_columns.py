"""Writes files of a folder as Parquet with columns `Audio` and `Video` of Hugging Face's datasets.

    python media_columns.py FOLDER WRITTEN

Of each file in FOLDER there is a row in WRITTEN/sounds/a.parquet or WRITTEN/videos/a.parquet, by its ending.
"""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
from datasets.table import embed_table_storage

COLUMNS = {
    "sounds": ("audio", datasets.Audio(), {".wav", ".flac", ".mp3"}),
    "videos": ("video", datasets.Video(), {".mp4"}),
}


def main() -> None:
    files = sorted(Path(sys.argv[1]).rglob("*.*"))
    for name, (column, feature, endings) in COLUMNS.items():
        paths = [str(path) for path in files if path.suffix in endings]
        rows = datasets.Dataset.from_dict({column: paths, "label": list(range(len(paths)))})
        (Path(sys.argv[2]) / name).mkdir(parents=True)
        rows = rows.cast_column(column, feature).with_format("arrow")
        # As `push_to_hub` does: else there are paths alone.
        rows.map(embed_table_storage, batched=True).with_format(None).to_parquet(Path(sys.argv[2]) / name / "a.parquet")


if __name__ == "__main__":
    main()

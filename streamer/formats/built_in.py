"""The names of the formats of this package. Imports nothing: `--help` shows them."""

from __future__ import annotations

AUTO = "auto"
# Imported when used.
BUILT_IN = {
    "folder": "streamer.formats.folder:Folder",
    "webdataset": "streamer.formats.webdataset:WebDataset",
}

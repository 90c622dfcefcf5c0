"""The names of the formats of this package. Imports nothing: `--help` shows them."""

from __future__ import annotations

AUTO = "auto"
# Imported when used.
BUILT_IN = {
    "folder": "streamer.formats.folder:Folder",
    "webdataset": "streamer.formats.webdataset:WebDataset",
    "mds": "streamer.formats.peers.mds:Mds",
    "litdata": "streamer.formats.peers.litdata:LitData",
    "tfrecord": "streamer.formats.tfrecord.format:TFRecord",
    "recordio": "streamer.formats.recordio:RecordIO",
    "jsonl": "streamer.formats.json_lines:JsonLines",
    "npy": "streamer.formats.arrays.rows:Npy",
    "hdf5": "streamer.formats.arrays.hdf5.format:HDF5",
    "parquet": "streamer.formats.parquet.format:Parquet",
    "zarr": "streamer.formats.arrays.zarr.format:Zarr",
    "raw": "streamer.formats.arrays.rows:RawArrays",
}

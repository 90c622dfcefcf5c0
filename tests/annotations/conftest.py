"""Opens once what pyarrow keeps open in a process, so that no test of annotations seems to have left it open."""

from __future__ import annotations

import io

import pyarrow.csv

# Its first reader of text makes a pipe for signals, which stays.
pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))

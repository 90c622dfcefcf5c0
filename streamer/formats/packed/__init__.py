"""Files of other formats that are compressed as a whole: `x.tar.gz`, `x.jsonl.zst`."""

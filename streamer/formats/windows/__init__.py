"""Windows over rows: samples of several rows that follow each other."""

"""One dataset of a loader: its manifest, its selected samples, its columns and joins."""

"""The dataset of one rank: engine, manifest, order, agreement with the other ranks."""

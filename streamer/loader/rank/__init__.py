"""What one rank reads: engine, manifest, order, agreement with the other ranks."""

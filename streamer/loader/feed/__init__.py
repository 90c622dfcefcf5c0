"""The feeder: gives batches to workers, puts them in order, hands them to the trainer."""

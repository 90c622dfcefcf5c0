"""The feeder: sends batches to workers, restores their order, delivers them to the trainer."""

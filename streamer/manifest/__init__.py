"""The objects, chunks and samples of a dataset: built once, memory-mapped from then on.

Reading (`table`, `selection`) and writing (`builder`) are imported from their own modules: trainers only read.
"""

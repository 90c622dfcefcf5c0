"""The objects, chunks and samples of a dataset. Built once, memory-mapped ever after.

Reading (`table`, `selection`) and writing (`builder`) are imported from their own modules: trainers only read.
"""

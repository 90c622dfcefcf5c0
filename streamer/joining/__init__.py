"""Labels, boxes and texts from a file beside the data, joined to samples by key; for loaders and packs.

annotations.py what a user says
matching.py    which samples of a dataset have a row
joiner.py      the fields of a sample's row
"""

"""Reads data sets of LeRobot: rows of Parquet files, and the frames of cameras that belong to them in videos.

The registry of formats (`formats/`) has its format `LeRobot`. `media/decode/` decodes its depth cameras.
"""

"""Reads the indexes of mp4, mov and Matroska, chooses the clips of videos, and makes the records of clips.

The formats of `media/video/`, `media/lerobot/` and `media/audio/` are made of it, and `media/decode/` reads the
records. Nothing is decoded here, and there is no I/O: functions ask for bytes by `yield` (`formats/reading.py`).
"""

"""Cuts windows out of long recordings: the format `Audio`, its readers of files, and its recoder.

The registry of formats (`formats/`) has the format. `media/video/` and `media/decode/` use the readers and records.
"""

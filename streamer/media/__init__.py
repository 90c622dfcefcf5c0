"""Reads video and audio: finds windows and clips in files, makes their records, and decodes these.

The registry of formats (`formats/`) has its formats `Audio`, `Video` and `LeRobot`. The decoding of samples (`decode/`)
has its decoders.
"""

"""Cuts clips out of long videos: the format `Video`, the audio of clips, their cost, and videos of them for shards.

The registry of formats (`formats/`) has the format. It is made of `media/containers/`.
"""

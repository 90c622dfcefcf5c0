"""The kinds of the fields of clips; see `streamer.media.decode.video`."""

CLIP = "clip"
PTS = "clip-pts"
DURATION = "clip-duration"
CLIP_AUDIO = "clip-audio"

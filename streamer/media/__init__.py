"""Video and audio: containers, windows and clips, and their decoding."""

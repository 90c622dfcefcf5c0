"""Videos and audio: the index of mp4 and mov, clips, and the records that clips are made of. No I/O, no decoding."""

"""`streamer doctor`: reports what this machine has and lacks, and what to do about it."""

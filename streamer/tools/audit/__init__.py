"""`streamer audit`: whether every sample came exactly once."""

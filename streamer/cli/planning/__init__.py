"""`streamer plan`: what a job will fetch, cost and wait for."""

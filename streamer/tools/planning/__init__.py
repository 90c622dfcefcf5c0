"""Predicts a job: the real order and the cache policy that ships, on a link and ranks that are computed."""

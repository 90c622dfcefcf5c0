"""Predicts a job: the engine's own scheduler and cache policy on a simulated link, with simulated ranks and clock."""

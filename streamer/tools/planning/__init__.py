"""Predicts what a job fetches, costs and waits for, for `streamer plan` (`tools/plan_command.py`).

model.py     holds the inputs and results
simulate.py  simulates a job: with its real order and the engine's cache policy, on a computed link and ranks
search.py    finds the smallest cache and the slowest link with which the job does not wait
decoding.py  measures what a worker takes to decode a clip
"""

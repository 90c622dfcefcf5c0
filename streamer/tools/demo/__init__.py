"""`streamer demo`: from bucket to batch on one machine, with everything measured in the run that shows it.

drawing.py   2,000 images in 8 classes, the same for the same seed
server.py    an S3 server in a process of its own, which counts what it serves
bucket.py    puts the images there, as tars and as a class folder
train.py     what each rank runs: the public API and a small network
run.py       starts all of it, kills the engine in epoch 3, collects what was measured
report.py    the table and the curves
"""

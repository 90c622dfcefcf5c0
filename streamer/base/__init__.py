"""What every other package may use: the operating system, processes, threads, logs, numbers."""

"""Data sets of LeRobot: rows of Parquet files, and the frames of cameras that belong to them in videos."""

"""Arrays whose rows are samples."""

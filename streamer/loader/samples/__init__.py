"""From an ordinal to a sample."""

"""Running experiments: rows, folders, workers, progress, tables."""

"""Calibrating forecasts of real data: the core on what ships with scikit-learn."""

"""Tables of forecasts: CSV and Parquet files that any program can write, and what their rows forecast."""

from calibrl.tables.forecasts import ACCEPTED, Forecasts, parse_forecasts, quantile_column, read_forecasts
from calibrl.tables.frames import read_table, write_table

__all__ = [
    "ACCEPTED",
    "Forecasts",
    "parse_forecasts",
    "quantile_column",
    "read_forecasts",
    "read_table",
    "write_table",
]

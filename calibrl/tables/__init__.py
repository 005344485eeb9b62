"""Tables of forecasts: files that any program can write, and what their rows forecast."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.tables.forecasts import ACCEPTED as ACCEPTED
    from calibrl.tables.forecasts import Forecasts as Forecasts
    from calibrl.tables.forecasts import parse_forecasts as parse_forecasts
    from calibrl.tables.forecasts import read_forecasts as read_forecasts
    from calibrl.tables.formats import write_table as write_table
    from calibrl.tables.names import quantile_column as quantile_column
    from calibrl.tables.reader import parse_columns as parse_columns
    from calibrl.tables.reader import read_cells as read_cells
    from calibrl.tables.reader import read_table as read_table

__getattr__, __dir__, __all__ = exports(__name__)

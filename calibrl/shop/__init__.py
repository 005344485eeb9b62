"""Order for a shop: its files in, an order for every item out, with the reason in words."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.inventory.files import Item as Item
    from calibrl.shop.backtest import Backtest as Backtest
    from calibrl.shop.backtest import backtest_frame as backtest_frame
    from calibrl.shop.backtest import run_backtest as run_backtest
    from calibrl.shop.files import Shop as Shop
    from calibrl.shop.files import read_shop as read_shop
    from calibrl.shop.orders import Order as Order
    from calibrl.shop.orders import make_orders as make_orders
    from calibrl.shop.page import orders_frame as orders_frame
    from calibrl.shop.page import reason as reason

__getattr__, __dir__, __all__ = exports(__name__)

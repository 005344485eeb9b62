"""Order for a shop: its files in, an order for every item out, with the reason in words."""

from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.shop.backtest import Replay as Replay
    from calibrl.shop.backtest import replay as replay
    from calibrl.shop.items_file import Item as Item
    from calibrl.shop.orders import Order as Order
    from calibrl.shop.orders import Shop as Shop
    from calibrl.shop.orders import make_orders as make_orders
    from calibrl.shop.orders import read_shop as read_shop
    from calibrl.shop.output import orders_frame as orders_frame
    from calibrl.shop.output import replay_frame as replay_frame
    from calibrl.shop.words import reason as reason

__getattr__, __dir__, __all__ = exports(__name__)

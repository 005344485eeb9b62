"""Order for a shop: its files in, an order for every item out, with the reason in words."""

from calibrl.inventory.shop.backtest import Replay, replay
from calibrl.inventory.shop.items_file import Item
from calibrl.inventory.shop.orders import Order, Shop, make_orders, read_shop
from calibrl.inventory.shop.output import orders_frame, replay_frame
from calibrl.inventory.shop.words import reason

__all__ = [
    "Item",
    "Order",
    "Replay",
    "Shop",
    "make_orders",
    "orders_frame",
    "read_shop",
    "reason",
    "replay",
    "replay_frame",
]

"""Orders as a table: every number a shop may want, and the defaults it rests on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from calibrl.shop.backtest import Replay
from calibrl.shop.orders import Order
from calibrl.shop.sales_file import Key
from calibrl.shop.words import reason


def orders_frame(orders: Sequence[Order], *, stores: bool) -> pl.DataFrame:
    """One row per item-store; demand is that of the days from the delivery up to the day before the next."""
    rows = [_row(order) for order in orders]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame if stores else frame.drop("store")


def replay_frame(replay: Replay, keys: Sequence[Key], *, stores: bool) -> pl.DataFrame:
    """One row per policy and item-store: units and money over the whole replay."""
    rows = []
    for name, found in replay.outcome.items():
        money = replay.money(name).sum(1)
        for k, (item, store) in enumerate(keys):
            sold, unmet = int(found.sold[k].sum()), int(found.unmet[k].sum())
            rows.append(
                {
                    "policy": name,
                    "item": item,
                    "store": store,
                    "from": _date(replay.dates[0]),
                    "to": _date(replay.dates[-1]),
                    "demand": sold + unmet,
                    "sold": sold,
                    "wasted": int(found.wasted[k].sum()),
                    "lost_sales": unmet,
                    "fill_rate": round(sold / (sold + unmet), 4) if sold + unmet else None,
                    "cost": round(float(money[k]), 2),
                }
            )
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame if stores else frame.drop("store")


def totals(orders: Sequence[Order]) -> str:
    """All orders in a line."""
    units = sum(order.plan.order for order in orders)
    waste, lost = (sum(part) for part in zip(*((o.plan.waste, o.plan.lost) for o in orders), strict=True))
    first, last = min(order.delivery for order in orders), max(order.delivery for order in orders)
    days = f"{first}" if first == last else f"{first} to {last}"
    items, stores = (len(set(names)) for names in zip(*(order.key for order in orders), strict=True))
    what = f"{items} item{'s' if items > 1 else ''}" + (f" in {stores} stores" if stores > 1 else "")
    return (
        f"{units:,} units of {what}, for delivery on {days}; "
        f"expected waste {waste:,.0f}, expected lost sales {lost:,.0f}."
    )


def _row(order: Order) -> dict[str, object]:
    item, plan = order.item, order.plan
    return {
        "item": order.key[0],
        "store": order.key[1],
        "order_by": _date(order.order_by),
        "delivery": _date(order.delivery),
        "lasts_until": _date(order.last_covered),
        "packs": order.packs,
        "units": plan.order,
        "demand": round(float(order.demand.mean()), 2),
        "demand_low_50": round(order.quantile(0.25), 1),
        "demand_high_50": round(order.quantile(0.75), 1),
        "demand_low_90": round(order.quantile(0.05), 1),
        "demand_high_90": round(order.quantile(0.95), 1),
        "on_hand": order.on_hand,
        "expected_waste": round(plan.waste, 2),
        "stockout_probability": round(plan.out, 3),
        "expected_lost_sales": round(plan.lost, 2),
        "reason": reason(order),
        "shelf_life": item.shelf_life,
        "pack_size": item.pack_size,
        "minimum_order": item.minimum_order,
        "lead_days": item.lead_days,
        "delivery_days": item.deliveries,
        "cost_of_waste": item.cost_of_waste,
        "cost_of_lost_sale": item.cost_of_lost_sale,
    }


def _date(day: np.datetime64) -> object:
    return day.astype("datetime64[D]").item()

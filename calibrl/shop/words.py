"""The reason for an order, in a sentence a shopkeeper can check against what they know."""

from __future__ import annotations

import numpy as np

from calibrl.kernels.deliveries import rounded_up
from calibrl.shop.items_file import Item
from calibrl.shop.orders import Order

NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

OFTEN = 5
"""Days sold out in four weeks that are worth a word."""

NOTABLE = 0.15
"""A level or trend this far from the usual is worth a word."""

ENOUGH = 2.0
"""Sales of an average day below which such a difference is chance."""


def reason(order: Order) -> str:
    """Why this order: demand, what moves it, stock, the order, and what may go wrong."""
    if order.off:
        return (
            f"Not sold for {order.idle} days, so nothing is ordered; if it should be, mark days that were closed, or "
            "plan the day it is sold again by a row with empty units."
        )
    if order.demand.max() == 0:
        state = "closed" if order.days_on_record else "closed, or before the first day it is planned for"
        return f"{_period(order)} {_be(order)} {state}, so nothing is ordered."
    parts = [_demand(order), _stock(order)]
    wanted = _decision(order)
    return f"{parts[0]}; {parts[1]}, so {wanted}."


def _demand(order: Order) -> str:
    low, middle, high = (order.quantile(level) for level in (0.05, 0.5, 0.95))
    words = f"{_period(order)} should sell about {middle:.0f} ({low:.0f} to {high:.0f} nine times in ten)"
    why = _drivers(order)
    return words + (f", {_listed(why)}" if why else "")


def _drivers(order: Order) -> list[str]:
    """What makes these days different from an average one."""
    if not order.days_on_record:
        return ["a guess from other stores or items, for want of sales"]
    found = []
    open_days = [day for day in order.when.cover if not order.shut[day]]
    usual = order.daily[open_days].mean() / order.level if order.level > 0 and open_days else 1.0
    if order.promotion:
        found.append("with the promotion")
    if order.sold_out >= OFTEN:
        found.append(_sold_out(order))
    if abs(usual - 1) >= NOTABLE and order.level >= ENOUGH:
        found.append(f"{abs(usual - 1):.0%} {'above' if usual > 1 else 'below'} an average day".replace("%", " %"))
    if abs(order.trend - 1) >= NOTABLE and order.level >= ENOUGH:
        way = "above" if order.trend > 1 else "below"
        found.append(f"after a week {abs(order.trend - 1):.0%} {way} the month before".replace("%", " %"))
    closed = [day for day in order.when.cover if order.shut[day]]
    if closed and open_days:
        found.append(f"closed on {_listed([_when(order, order.day(day)) for day in closed])}")
    return found


def _sold_out(order: Order) -> str:
    if not order.most_sold:
        return f"by what sold before it was out of stock on {order.sold_out} of the last 28 days"
    words = f"having sold out on {order.sold_out} of the last 28 days"
    return f"{words} (how much beyond {order.most_sold:.0f} a day is unknown)" if order.blind else words


def _stock(order: Order) -> str:
    if not order.on_hand and not order.under_way:
        later = f" until {_when(order, order.delivery)}" if order.when.day[0] > 0 else ""
        return f"nothing is on the shelf{later}"
    count = f"{order.on_hand:.0f} {'is' if round(order.on_hand) == 1 else 'are'}" if order.on_hand else "none is"
    words = f"{count} on the shelf"
    if order.under_way:
        words += f" and {order.under_way:.0f} under way"
    if order.expiring >= 0.5:
        some = "all" if order.expiring == order.on_hand > 1 else f"{order.expiring:.0f}"
        words += f", {some} of which {_expire(order.expiring)} before the delivery"
    if order.when.day[0] == 0:
        return words
    delivery = _when(order, order.delivery)
    if order.plan.out_before >= 0.5:  # no order can mend it
        return f"{words}, and the shelf will probably be empty before {delivery}"
    return f"{words}, of which {order.position:.0f} should be left on {delivery}"


def _decision(order: Order) -> str:
    plan, item = order.plan, order.item
    if not plan.order:
        return f"nothing is ordered{_too_much(order)} ({_chance(plan.out)} to run out)"
    amount = f"{plan.order}"
    if item.pack_size > 1:
        amount = f"{order.packs} {'pack' if order.packs == 1 else 'packs'} of {item.pack_size}"
    if order.order_by > order.today:
        amount += f" by {_when(order, order.order_by)}"
    why = ", the least one can order" if plan.order == _least(item) > 1 else ""
    return f"order {amount}{why}{_lasting(order)} ({_chance(plan.out)} to run out, {_some(plan.waste)} may be wasted)"


def _least(item: Item) -> int:
    """The smallest delivery, in units."""
    return rounded_up(1.0, item.pack_size, item.minimum_order)


def _too_much(order: Order) -> str:
    """Why nothing is ordered though the shelf will be empty."""
    if order.plan.out < 0.5:
        return ""
    return f", because the smallest delivery, {_least(order.item)}, would cost more than it saves"


def _lasting(order: Order) -> str:
    """How long an order lasts or keeps, if that is not until the next delivery."""
    first, cover = order.when.day[0], [day for day in order.when.cover if not order.shut[day]]
    keeps = first + order.item.shelf_life - 1
    if keeps < cover[-1]:
        return f", which can be sold until {_when(order, order.day(keeps))}"
    enough = order.daily[first:].cumsum() <= order.position + order.plan.order
    lasts = min(first + int(enough.sum()) - 1, keeps)
    return f", enough until about {_when(order, order.day(lasts))}" if lasts > order.when.cover[-1] else ""


def _period(order: Order) -> str:
    days = list(order.when.cover)
    first, last = order.day(days[0]), order.day(days[-1])
    if len(days) == 1:
        return f"{_weekday(first)} {_date(first)}"
    if len(days) == 2:
        return f"{_when(order, first)} and {_when(order, last)}"
    return f"{_weekday(first)} {_date(first)} to {_weekday(last)} {_date(last)}"


def _be(order: Order) -> str:
    return "is" if len(order.when.cover) == 1 else "are"


def _weekday(day: np.datetime64) -> str:
    return NAMES[(int(day.astype("datetime64[D]").astype(np.int64)) + 3) % 7]


def _when(order: Order, day: np.datetime64) -> str:
    """The weekday, with its date from a week ahead on, when there is another between."""
    far = (day - order.today).astype(np.int64) >= 7
    return f"{_weekday(day)} {_date(day)}" if far else _weekday(day)


def _date(day: np.datetime64) -> str:
    found = day.astype("datetime64[D]").item()
    return f"{found.day} {found:%B}"


def _chance(probability: float) -> str:
    if probability < 0.005:
        return "hardly a chance"
    share = f"{100 * probability:.0f}"
    # Eight, eleven, eighteen and the eighties begin with a vowel.
    return f"{'an' if share.startswith('8') or share in ('11', '18') else 'a'} {share} % chance"


def _some(units: float) -> str:
    return "hardly any" if units < 0.05 else f"about {units:.1f}" if units < 3 else f"about {units:.0f}"


def _expire(units: float) -> str:
    return "expires" if round(units) == 1 else "expire"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

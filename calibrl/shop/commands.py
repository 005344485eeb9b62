"""`calibrl order`: tonight's orders for a shop, from its own files."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrl.errors import CalibrlError
from calibrl.files import same_file
from calibrl.text import say

if TYPE_CHECKING:
    import numpy as np

    from calibrl.shop.backtest import Backtest
    from calibrl.shop.files import Shop
    from calibrl.shop.orders import Order

SHOWN, EXPLAINED = 12, 3
"""Orders that are printed, and explained; the file has them all."""

LOOK_BACK = 28
"""Days of the past whose forecasts are on the page."""

WIDTH = 110


def order(
    sales: Annotated[
        Path, typer.Option(help="Sales, as CSV, Excel or Parquet: date, item, units; optional: store, price, …")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the orders: .csv, .tsv or .parquet.")],
    stock: Annotated[Path | None, typer.Option(help="What is on the shelf or under way: item, units, …")] = None,
    items: Annotated[Path | None, typer.Option(help="Facts about items: item, shelf_life, pack_size, …")] = None,
    date: Annotated[
        str | None, typer.Option(help="Order on the evening of this day; default: the day of the last sale.")
    ] = None,
    backtest: Annotated[str | None, typer.Option(help="Also replay the past, for so long: 90d, 12w or 3m.")] = None,
    deliveries: Annotated[
        Path | None, typer.Option(help="With --backtest: what was really delivered: date, item, units.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Columns of the sales with other names, as ours=theirs: units=Qty.")
    ] = None,
    date_format: Annotated[
        str | None, typer.Option(help="How the sales file writes dates: day-first, month-first or like %d.%m.%y.")
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Which sheet of an Excel file has the sales.")] = None,
    country: Annotated[str, typer.Option(help="Whose public holidays to expect: DE, US, or a part, DE-BW.")] = "",
    time_zone: Annotated[str, typer.Option(help="The shop's time zone, if times are in UTC: Europe/Berlin.")] = "",
    regressor: Annotated[
        list[str] | None, typer.Option(help="Another column of numbers to learn from; repeat for several.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the first few items: .png, .svg or .pdf.")] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Also write a page for the manager: .html.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated demand.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="How many planning jobs run at once.")] = 2,
    backend: Annotated[str, typer.Option(help="Where planning jobs run: threads, processes or ray.")] = "threads",
    address: Annotated[str | None, typer.Option(help="With --backend ray: address of a running cluster.")] = None,
) -> None:
    """Suggest orders for the next delivery: how much of each item, how sure that is, and why.

    Example: calibrl order --sales sales.csv --stock stock.csv --items items.csv --out orders.csv
    """
    from calibrl.inventory.history import first_few
    from calibrl.inventory.tills import Reading
    from calibrl.runs.workers import BACKENDS, check_backend
    from calibrl.shop.files import read_shop
    from calibrl.shop.orders import THREADS, make_orders
    from calibrl.tables.commands import expect_suffix
    from calibrl.tables.reader import parse_columns

    if backend != THREADS and backend not in BACKENDS:
        raise CalibrlError(f"--backend {backend!r} is unknown; use {', '.join((THREADS, *BACKENDS))}")
    check_backend("processes" if backend == THREADS else backend, workers=workers, address=address)
    expect_suffix(out, ".csv", ".tsv", ".parquet")
    expect_suffix(plot, ".png", ".svg", ".pdf")
    expect_suffix(page, ".html", ".htm")
    days = None if backtest is None else _days(backtest)
    written = [out, *(path for path in (plot, page) if path is not None), *([] if days is None else _beside(out))]
    _refuse_overwriting(written, (sales, stock, items, deliveries))
    if deliveries is not None and days is None:
        raise CalibrlError(f"--deliveries {deliveries} is for a backtest; add --backtest 90d")
    reading = Reading(parse_columns(columns), date_format, sheet, tuple(regressor or ()), country, time_zone)
    shop = read_shop(sales, stock=stock, items=items, today=_date(date), reading=reading)
    tested = None if days is None else _tested(shop, days, deliveries, sales=sales, seed=seed, workers=workers)
    look_back = 0 if page is None else LOOK_BACK
    orders = make_orders(shop, seed=seed, workers=workers, backend=backend, address=address, look_back=look_back)
    written = _write(out, shop, orders, tested, plot, page)
    if new := shop.new_items:
        say(
            f"calibrl: no sales on record for {first_few(new)}: ordered on a guess, what the same item sells in other "
            "stores, or else the shop's median item (or 1 a day), as uncertain as it is large",
            err=True,
        )
    _show(shop, orders, written)
    if tested is not None:
        _show_backtest(tested)


def _beside(out: Path) -> tuple[Path, Path]:
    """Where a backtest's table and figure go."""
    return out.with_name(f"{out.stem}-backtest{out.suffix}"), out.with_name(f"{out.stem}-backtest.png")


def _refuse_overwriting(written: Sequence[Path], read: Sequence[Path | None]) -> None:
    for path in written:
        for file in read:
            if file is not None and same_file(path, file):
                raise CalibrlError(f"{path}: is read as {file}, and would be overwritten; write to another file")
    if any(same_file(*pair) for pair in itertools.combinations(written, 2)):
        raise CalibrlError(f"{written[1]}: would be written twice; give --out and --plot names of their own")


def _days(text: str) -> int:
    """90d, 12w or 3m in days."""
    match = re.fullmatch(r"\s*(\d{1,4})\s*([dwm])?\s*", text.lower())
    days = int(match[1]) * {"d": 1, "w": 7, "m": 30, None: 1}[match[2]] if match else 0
    if days < 7:
        raise CalibrlError(f"--backtest {text!r} is not a period of a week or more; write it like 90d, 12w or 3m")
    return days


def _date(text: str | None) -> np.datetime64 | None:
    import numpy as np

    if text is None:
        return None
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        return np.datetime64(text, "D")
    except ValueError:
        raise CalibrlError(f"--date {text!r} is not a date; write it like 2018-05-31") from None


def _tested(shop: Shop, days: int, deliveries: Path | None, *, sales: Path, seed: int, workers: int) -> Backtest:
    from calibrl.runs.console import Shown
    from calibrl.shop.backtest import WARM_UP, run_backtest
    from calibrl.shop.files import read_deliveries

    delivered = None if deliveries is None else read_deliveries(deliveries, shop.history, sales=str(sales))
    with Shown("backtest", unit="days") as shown:
        shown.started(days + WARM_UP, 0)
        return run_backtest(shop, days, delivered=delivered, seed=seed, workers=workers, on_day=shown.finished)


def _write(
    out: Path, shop: Shop, orders: Sequence[Order], tested: Backtest | None, plot: Path | None, page: Path | None
) -> list[Path]:
    """The orders, their picture and, after a backtest, its table and figure beside them: all of the files or none."""
    from calibrl.files import replacing_all, writable, write_text
    from calibrl.shop.backtest import backtest_frame
    from calibrl.shop.page import backtest_figure, orders_figure, orders_frame, orders_page
    from calibrl.tables import write_table

    stores = shop.history.stores
    table, picture = _beside(out)
    written: dict[Path, Callable[[Path], None]] = {
        out: lambda at: write_table(orders_frame(orders, stores=stores), out, at=at)
    }
    if plot is not None:
        kind = plot.suffix[1:].lower()
        written[plot] = lambda at: orders_figure(orders, shop.history).savefig(at, dpi=130, format=kind)
    if page is not None:
        text = orders_page(shop, orders, tested)
        written[page] = lambda at: write_text(at, text)
    if tested is not None:
        written[table] = lambda at: write_table(backtest_frame(tested, shop.history.keys, stores=stores), table, at=at)
        written[picture] = lambda at: backtest_figure(tested).savefig(at, dpi=130, format="png")
    with writable(out), replacing_all(list(written)) as places:
        for write, at in zip(written.values(), places, strict=True):
            write(at)
    return list(written)


def _show(shop: Shop, orders: Sequence[Order], written: list[Path]) -> None:
    """The orders with most at risk as a table, why the first few are what they are, and what was assumed."""
    from calibrl.shop.page import reason, totals

    stores = shop.history.stores
    riskiest = sorted(orders, key=lambda one: -one.at_risk)
    _print([_row(one, stores=stores) for one in riskiest[:SHOWN]], text=(0, 1) if stores else (0,))
    if len(orders) > SHOWN:
        say(f"… and {len(orders) - SHOWN} with less at risk in {written[0]}")
    say("\n" + totals(orders))
    for one in riskiest[:EXPLAINED]:
        _say(f"{' in '.join(part for part in one.key if part)}: {reason(one)}")
    say("")
    for note in shop.notes:
        _say(note)
    _say(shop.done)
    _say(f"Written: {', '.join(str(path) for path in written)}")


def _row(one: Order, *, stores: bool) -> dict[str, str]:
    item, store = one.key
    packs = f" = {one.packs} x {one.item.pack_size}" if one.item.pack_size > 1 and one.packs else ""
    return {
        "item": item,
        **({"store": store} if stores else {}),
        "delivery": f"{one.delivery.astype('datetime64[D]').item():%a %d %b}",
        "order": f"{one.decision.units}{packs}",
        "demand": f"{one.quantile(0.5):.0f}",
        "50 %": "{:.0f}-{:.0f}".format(*one.interval(0.5)),
        "90 %": "{:.0f}-{:.0f}".format(*one.interval(0.9)),
        "stock": f"{one.on_hand:.0f}",
        "waste": f"{one.decision.waste:.1f}",
        "runs out": f"{one.decision.out:.0%}",
        "at risk": f"{one.at_risk:.2f}",
    }


def _show_backtest(tested: Backtest) -> None:
    """Money and units by policy, and what the calibrated plan saves over each other."""
    from calibrl.shop.backtest import CALIBRATED, STAND_IN, UNCALIBRATED

    say(f"\nBacktest, {tested.dates[0]} to {tested.dates[-1]} ({len(tested.dates)} days):\n")
    rows = []
    for name, found in tested.units.items():
        demand = found.sold.sum() + found.unmet.sum()
        money, *ends = tested.saving(CALIBRATED, name)
        saved = f"{money:,.0f}" + ("" if isnan(ends[0]) else f" ({ends[0]:,.0f} to {ends[1]:,.0f})")
        rows.append(
            {
                "policy": name,
                "cost": f"{tested.money(name).sum():,.0f}",
                "wasted": f"{found.wasted.sum():,}",
                "lost sales": f"{found.unmet.sum():,}",
                "fill rate": f"{found.sold.sum() / max(demand, 1):.1%}",
                "calibrated saves": "" if name == CALIBRATED else saved,
            }
        )
    _print(rows, text=(0,))
    best = tested.best_rule
    shares = [100 * money / max(tested.money(best).sum(), 1e-9) for money in tested.saving(CALIBRATED, best)]
    low, high = sorted(end if shares[0] >= 0 else -end for end in shares[1:])
    if isnan(low):
        _say("How much of this is luck, so few weeks cannot tell; replay four or more.")
    else:
        _say("In brackets a 95 % interval, from how much the weeks differ.")
    sure = "" if isnan(low) else f" ({low:.0f} to {high:.0f})"
    _say(
        f"Of the policies without a plan, {best} cost least; the calibrated plan costs {abs(shares[0]):.0f} %{sure} "
        f"{'less' if shares[0] >= 0 else 'more'}."
        + (sure and " As that rule is chosen afterwards, this interval holds only about nine times in ten.")
    )
    _say(
        f"Tomorrow's demand fell inside its 90 % interval on {tested.held[CALIBRATED]:.1%} of days "
        f"({tested.held[UNCALIBRATED]:.1%} uncalibrated)."
    )
    if STAND_IN in tested.units:
        _say(
            "How the shop orders now is not in the files, so a stand-in takes its place: up to last week's sales "
            "of the same days. With --deliveries the real deliveries are replayed."
        )
    if tested.sold_out:
        _say(
            f"On {tested.sold_out} item-days the shelf sold out; their demand is estimated, {tested.estimated:,} units "
            "more than was sold, and counted alike for every policy."
        )


def _print(rows: list[dict[str, str]], *, text: tuple[int, ...]) -> None:
    """Rows under their names; text: the columns that hold some, from 0."""
    from calibrl.tables.output import aligned

    say("\n".join(aligned([list(rows[0]), *(list(row.values()) for row in rows)], text=text, longest=WIDTH)))


def _say(text: str) -> None:
    """A sentence, wrapped."""
    # A per cent sign stays with its number.
    lines = textwrap.wrap(text.replace(" %", "\u00a0%"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    say("\n".join(lines).replace("\u00a0", " "))

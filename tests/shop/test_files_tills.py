"""Eighty sales files of one shop, as real tills and spreadsheets write them: each gives the same orders."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import xlsxwriter

from calibrl.errors import CalibrlError
from calibrl.inventory.tills import Reading
from calibrl.shop.files import read_shop
from calibrl.shop.orders import make_orders
from tests.shop.conftest import small_shop

SHOP = small_shop(80, items=("brioche", "müsli", "rolls")).with_columns(pl.col("date").cast(pl.String))
DAYS = SHOP.with_columns(pl.col("date").str.to_date())
GERMAN = {"date": "Datum", "item": "Artikel", "units": "Menge"}
AMERICAN = {"date": "Date", "item": "Item Name", "units": "Qty Sold"}


def text(frame: pl.DataFrame, *, form: str = "%Y-%m-%d", separator: str = ",") -> str:
    return frame.with_columns(pl.col("date").str.to_date().dt.strftime(form)).write_csv(separator=separator)


def receipts(form: str = "%Y-%m-%d %H:%M") -> pl.DataFrame:
    """Two lines for each item and day, of which the second holds what the first does not."""
    first = pl.col("units") // 2
    morning = SHOP.with_columns(units=first, date=pl.col("date") + " 08:10")
    later = SHOP.with_columns(units=pl.col("units") - first, date=pl.col("date") + " 15:45")
    return pl.concat([morning, later]).with_columns(
        date=pl.col("date").str.to_datetime("%Y-%m-%d %H:%M").dt.strftime(form)
    )


def returned() -> pl.DataFrame:
    """A unit too many in each of some lines, which comes back in the next."""
    some = SHOP.filter(pl.int_range(pl.len()) % 9 == 0)
    return pl.concat(
        [SHOP, some.with_columns(units=pl.lit(1, pl.Int64)), some.with_columns(units=pl.lit(-1, pl.Int64))]
    )


def by_item() -> pl.DataFrame:
    return SHOP.pivot("item", index="date", values="units")


def by_day() -> pl.DataFrame:
    days = SHOP.with_columns(pl.col("date").str.to_date().dt.strftime("%d.%m.%Y"))
    return days.pivot("date", index="item", values="units")


def with_zeros() -> pl.DataFrame:
    """Every day a row, closed ones too."""
    days = pl.DataFrame({"date": [str(np.datetime64("2025-01-01") + k) for k in range(80)]})
    whole = days.join(SHOP.select("item").unique(), how="cross").join(SHOP, on=["date", "item"], how="left")
    return whole.with_columns(pl.col("units").fill_null(0), closed=pl.col("units").is_null().cast(pl.Int8))


def lines(header: str, line: Callable[[date, str, int, int], str | list[str]], *more: str) -> str:
    """A text with a line, or several, for each day, item, units and number of the row."""
    made = [header]
    for number, (day, item, units) in enumerate(DAYS.select("date", "item", "units").iter_rows()):
        found = line(day, item, units, number)
        made += [found] if isinstance(found, str) else found
    return "\n".join([*made, *more]) + "\n"


def till(name: str, text: str, encoding: str = "utf-8", reading: Reading | None = None) -> Till:
    return name, lambda path: path.write_bytes(text.encode(encoding)), reading or PLAIN


def square(day: date, item: str, units: int, number: int) -> list[str]:
    """Two sales and, now and then, a refund of what was sold too much."""
    begin, end = f"{day:%m/%d/%y},08:1{number % 6}:22,Bakery,{item}", "Regular,SKU7,$2.50"
    extra = 1 if number % 11 == 0 else 0
    refund = [f"{begin},-1.0,{end},Refund,1"] if extra else []
    return [f"{begin},{units - 1 + extra}.0,{end},Payment,9", f"{begin},1.0,{end},Payment,1", *refund]


def loyverse(day: date, item: str, units: int, number: int) -> list[str]:
    """Refunds with their own type instead of a sign; cancelled receipts that are still in the file."""
    begin = f"{day:%d/%m/%y} 9:41,{item}"
    extra = 2 if number % 10 == 0 else 0
    refund = [f"{begin},Refund,2,Closed"] if extra else []
    cancelled = [f"{begin},Sale,50,Cancelled"] if number % 13 == 0 else []
    return [f"{begin},Sale,{units + extra},Closed", *refund, *cancelled]


def storno(day: date, item: str, units: int, number: int) -> list[str]:
    begin, end = f"{day:%d.%m.%Y};08:15;{item}", "2,50 €"
    void = [f"{begin};40;{end};ja"] if number % 7 == 0 else []
    return [f"{begin};{units};{end};nein", *void]


def vend(day: date, item: str, units: int, number: int) -> list[str]:
    """A receipt, what is on it and how it was paid, each on a line of its own."""
    begin, receipt = f"{day} 08:10:00,{number}", f"{units},{units * 2.5},{units} X {item}"
    return [f"{begin},Sale,{receipt}", f"{begin},Sale Item,{units},{units * 2.5},{item}", f"{begin},Payment,,,Cash"]


def sumup(day: date, item: str, units: int, number: int) -> list[str]:
    begin, extra = f'"{day.day} {day:%b %Y}, 08:10",Visa', int(number % 8 == 0)
    return [f"{begin},{units + extra},{item},2.50,Sale", *[f"{begin},1,{item},2.50,Refund"] * extra]


def booked(day: date, item: str, units: int, number: int) -> list[str]:
    """Returns of their own kind, and sales of the till's training mode."""
    begin, extra = f"{day:%d.%m.%Y};{item}", int(number % 9 == 0)
    more = [f"{begin};1;Retoure;normal", f"{begin};7;Verkauf;Training"]
    return [f"{begin};{units + extra};Verkauf;normal", *more * extra]


def grouped(*, item: bool) -> str:
    """A report with each item, or day, named once, above what it is about, and a total below it."""
    made = ["Item,Date,Qty"]
    for name, part in SHOP.group_by("item" if item else "date", maintain_order=True):
        for k, (day, sold, units) in enumerate(part.select("date", "item", "units").iter_rows()):
            made.append(f"{sold if k == 0 or not item else ''},{day if k == 0 or item else ''},{units}")
        made += [f"Total {name[0]},,{part['units'].sum()}"] if item else []
    return "\n".join(made) + "\n"


def titled(path: Path) -> None:
    with xlsxwriter.Workbook(str(path)) as book:
        sheet = book.add_worksheet("Sales")
        sheet.write(0, 0, "Sales by product")
        sheet.write_row(2, 0, ("Date", "Product", "Quantity", "Amount"))
        for number, (day, item, units) in enumerate(SHOP.select("date", "item", "units").iter_rows()):
            sheet.write_row(3 + number, 0, (day, item, units, 2.5 * units))
        sheet.write_row(3 + len(SHOP), 0, ("Total", "", SHOP["units"].sum()))


def pivoted(path: Path) -> None:
    """A pivot table of Excel's, with two lines of names above and a total on either side."""
    table = by_item()
    with xlsxwriter.Workbook(str(path)) as book:
        sheet, form = book.add_worksheet("Pivot"), book.add_format({"num_format": "yyyy-mm-dd"})
        sheet.write_row(0, 0, ("Sum of Qty", "Column Labels"))
        sheet.write_row(1, 0, ("Row Labels", *table.columns[1:], "Grand Total"))
        for number, (day, *units) in enumerate(table.iter_rows()):
            sheet.write_datetime(2 + number, 0, datetime.fromisoformat(day), form)
            sheet.write_row(2 + number, 1, (*units, sum(units)))
        sheet.write_row(2 + len(table), 0, ("Grand Total", *(table[name].sum() for name in table.columns[1:])))


def dates_on_top(path: Path) -> None:
    """A sheet with a column for each day, whose names are dates and no text."""
    table = SHOP.pivot("date", index="item", values="units")
    with xlsxwriter.Workbook(str(path)) as book:
        sheet, form = book.add_worksheet("Sales"), book.add_format({"num_format": "d/m/yy"})
        sheet.write(0, 0, "Article")
        for number, day in enumerate(table.columns[1:], 1):
            sheet.write_datetime(0, number, datetime.fromisoformat(day), form)
        for number, row in enumerate(table.iter_rows(), 1):
            sheet.write_row(number, 0, row)


def taken_back(day: date, item: str, units: int, number: int) -> list[str]:
    """Returns in a column of their own."""
    return [f"{day},08:05,{item},{units + number % 3},0", f"{day},17:55,{item},0,{number % 3}"]


def with_totals(word: str) -> str:
    """A total below each day that only its size tells from an item."""
    made = ["Date,Item,Qty"]
    for (day,), part in SHOP.group_by("date", maintain_order=True):
        made += [f"{day},{item},{units}" for item, units in part.select("item", "units").iter_rows()]
        made.append(f"{day},{word},{part['units'].sum()}")
    return "\n".join(made) + "\n"


def undone(form: str, gone: str = "", back: str = "") -> Callable[[date, str, int, int], list[str]]:
    """Some lines again, cancelled; and units too many in some, which come back without a sign."""

    def line(day: date, item: str, units: int, number: int) -> list[str]:
        some, begin = number % 9 == 0, f"{day:{form}}"
        sold = f"{begin};{item};{units + 2 * (some and back != '')};"
        more = [f"{begin};{item};{amount};{word}" for amount, word in ((7, gone), (2, back)) if some and word]
        return [f"{sold}ok", *more]

    return line


Till = tuple[str, Callable[[Path], object], Reading]
PLAIN = Reading()

TILLS: dict[str, Till] = {
    "comma": ("sales.csv", lambda path: path.write_text(text(SHOP)), PLAIN),
    "german": (
        "Umsatz.csv",
        lambda path: path.write_bytes(
            DAYS.with_columns(pl.col("date").dt.strftime("%d.%m.%Y"))
            .rename(GERMAN)
            .write_csv(separator=";")
            .encode("latin-1")
        ),
        PLAIN,
    ),
    "tabs": ("sales.tsv", lambda path: path.write_text(text(SHOP, separator="\t")), PLAIN),
    "bars": ("sales.txt", lambda path: path.write_text(text(SHOP, separator="|")), PLAIN),
    "compressed": ("sales.csv.gz", lambda path: path.write_bytes(gzip.compress(text(SHOP).encode())), PLAIN),
    "byte order mark": ("sales.csv", lambda path: path.write_bytes(b"\xef\xbb\xbf" + text(SHOP).encode()), PLAIN),
    "unicode text of Excel": (
        "sales.txt",
        lambda path: path.write_bytes(text(SHOP, separator="\t").encode("utf-16")),
        PLAIN,
    ),
    "windows line ends": ("sales.csv", lambda path: path.write_bytes(text(SHOP).replace("\n", "\r\n").encode()), PLAIN),
    "excel": ("sales.xlsx", lambda path: DAYS.write_excel(path), PLAIN),
    "excel, dates as text": ("sales.xlsx", lambda path: SHOP.write_excel(path), PLAIN),
    "parquet": (
        "sales.parquet",
        lambda path: DAYS.write_parquet(path),
        PLAIN,
    ),
    "feather": ("sales.feather", lambda path: SHOP.write_ipc(path), PLAIN),
    "american receipts": (
        "Item Sales.csv",
        lambda path: receipts("%m/%d/%Y %I:%M %p").rename(AMERICAN).write_csv(path),
        PLAIN,
    ),
    "receipts": ("receipts.csv", lambda path: receipts().write_csv(path), PLAIN),
    "returns": ("sales.csv", lambda path: returned().write_csv(path), PLAIN),
    "a column for each item": ("wide.csv", lambda path: by_item().write_csv(path), PLAIN),
    "a column for each day": ("wide.xlsx", lambda path: by_day().write_excel(path), PLAIN),
    "totals": ("sales.csv", lambda path: path.write_text(text(SHOP) + "Total,,12345\n"), PLAIN),
    "zeros on closed days": ("sales.csv", lambda path: with_zeros().write_csv(path), PLAIN),
    "odd names": (
        "sales.csv",
        lambda path: SHOP.rename({"date": "when", "item": "what", "units": "how many"}).write_csv(path),
        Reading({"date": "when", "item": "what", "units": "how many"}),
    ),
    "Square": till(
        "items.csv", lines("Date,Time,Category,Item,Qty,Price Point Name,SKU,Net Sales,Event Type,Count", square)
    ),
    "Shopify's report": till(
        "sales.csv",
        lines(
            "day,product_title,product_vendor,net_quantity,gross_sales,returns,net_sales",
            lambda day, item, units, _: f"{day},{item},House,{units},{units * 3.1:.2f},0.00,{units * 3.1:.2f}",
        ),
    ),
    "Shopify's orders": till(
        "orders.csv",
        lines(
            "Name,Financial Status,Paid at,Created at,Lineitem quantity,Lineitem name,Lineitem price,Cancelled at",
            lambda day, item, units, number: [
                f"#{number},paid,{day} 23:50:00 +0200,{day} 23:49:12 +0200,{units},{item},2.50,",
                f"#{number}b,refunded,{day} 23:50:00 +0200,{day} 23:49:12 +0200,30,{item},2.50,",
                f"#{number}c,paid,{day} 23:50:00 +0200,{day} 23:49:12 +0200,30,{item},2.50,{day} 23:55:00 +0200",
            ],
        ),
    ),
    "Lightspeed": till(
        "report.csv",
        lines(
            "Sales report\nPeriod: January to March\n\nSale Date,Product,SKU,Items Sold,Revenue",
            lambda day, item, units, _: f'{day:%d %b %Y},{item},A1,{units},"{units * 250:,.2f}"',
            'Totals,,,9999,"1,234,567.00"',
            "Printed by the manager,,,,",
        ),
    ),
    "SAP": till(
        "MB51.txt",
        lines(
            "Material\tMaterialkurztext\tWerk\tBuchungsdatum\tMenge in ErfassME\tErfassungsmengeneinheit",
            lambda day, item, units, _: f"00471\t{item}\tDE01\t{day:%d.%m.%Y}\t{units},000\tST",
        ),
        "utf-16",
    ),
    "signs behind numbers": till(
        "sap.txt",
        lines(
            "Posting Date\tMaterial Description\tQuantity",
            lambda day, item, units, number: [
                f"{day}\t{item}\t{units + number % 2 * 2}",
                *[f"{day}\t{item}\t2-"] * (number % 2),
            ],
        ),
    ),
    "DATEV": till(
        "EXTF.csv",
        lines(
            '"EXTF";700;21;"Buchungsstapel";13\nBelegdatum;Artikelnummer;Artikelbezeichnung;Menge;Einzelpreis;Umsatz',
            lambda day, item, units, _: f"{day:%d.%m.%y};A7;{item};{units},00;2,50;{2 * units},50",
        ),
        "cp1252",
    ),
    "Vend": till("register.csv", lines("Date,Receipt Number,Line Type,Quantity,Subtotal,Product", vend)),
    "SumUp": till("sumup.csv", lines("Date,Payment Method,Quantity,Description,Price (Gross),Type", sumup)),
    "kinds and training": till("kasse.csv", lines("Datum;Artikel;Menge;Buchungsart;Modus", booked)),
    "variants": till(
        "zettle.csv",
        lines(
            "Date,Time,Name,Variant,SKU,Quantity",
            lambda day, item, units, _: [
                f"{day},08:10,{item},S,,{units // 2}",
                f"{day},08:11,{item},L,,{units - units // 2}",
            ],
        ),
    ),
    "a total a day": till(
        "daily.csv",
        lines(
            "Date,Item,Qty",
            lambda day, item, units, n: [f"{day},{item},{units}", *[f"{day},Daily total,999"] * (n % 3 == 2)],
        ),
    ),
    "Korean": till("매출.csv", lines("일자,상품명,수량", lambda day, item, units, _: f"{day},{item},{units}")),
    "Greek": till(
        "sales.csv", lines("Ημερομηνία;Είδος;Ποσότητα", lambda day, item, units, _: f"{day:%d/%m/%Y};{item};{units}")
    ),
    "Storno": till("kasse.csv", lines("Datum;Uhrzeit;Artikel;Menge;Einzelpreis;Storno", storno), "cp1252"),
    "French": till(
        "ventes.csv",
        lines(
            "Date de vente;Désignation;Quantité;Prix unitaire TTC",
            lambda day, item, units, _: f"{day:%d/%m/%Y};{item};{units},000;2,50",
            "Total général;;9999,000;",
        ),
        "cp1252",
    ),
    "voids": till(
        "details.csv",
        lines(
            "Order Id,Sent Date,Order Date,Menu Item,Qty,Void?",
            lambda day, item, units, number: [
                f"{number},{day:%m/%d/%y} 8:15 AM,{day:%-m/%-d/%y} 8:10 AM,{item},{units}.0,false",
                f"{number},{day:%m/%d/%y} 8:15 AM,{day:%-m/%-d/%y} 8:10 AM,{item},25.0,true",
            ],
        ),
    ),
    "refunds by type": till("receipts.csv", lines("Date,Item,Receipt type,Quantity,Status", loyverse)),
    "serial numbers of Excel": till(
        "export.csv",
        lines(
            "Day,Product Name,Units Sold",
            lambda day, item, units, _: f"{(day - date(1899, 12, 30)).days},{item},{units}",
        ),
    ),
    "times in UTC": till(
        "events.csv",
        lines("sold_at,item_name,quantity", lambda day, item, units, _: f"{day}T04:30:15.250Z,{item},{units}"),
        reading=Reading(time_zone="Europe/Berlin"),
    ),
    "a column for each item and one of totals": till(
        "wide.csv", by_item().with_columns(Total=pl.sum_horizontal("brioche", "müsli", "rolls")).write_csv()
    ),
    "an item named once": till("grouped.csv", grouped(item=True)),
    "a day named once": till("grouped.csv", grouped(item=False)),
    "a title on the sheet": ("report.xlsx", titled, PLAIN),
    "long dates": till(
        "long.csv", lines("Date,Item,Qty", lambda day, item, units, _: f'"{day:%A, %B %d, %Y}",{item},{units}')
    ),
    "weekdays": till(
        "wd.csv", lines("Datum;Artikel;Stück", lambda day, item, units, _: f"{day:%a} {day:%d.%m.%y};{item};{units}")
    ),
    "units behind numbers": till(
        "pcs.csv", lines("Date,Item,Quantity", lambda day, item, units, _: f"{day},{item},{units} pcs")
    ),
    "accountants' brackets": till(
        "book.csv",
        lines(
            "Date,Item,Qty,",
            lambda day, item, units, number: [
                f"{day},{item},{units + number % 2 * 3},",
                *[f"{day},{item},(3),"] * (number % 2),
            ],
        ),
    ),
    "polish": till(
        "sprzedaż.csv",
        lines("Data sprzedaży;Nazwa towaru;Ilość", lambda day, item, units, _: f"{day:%d.%m.%Y};{item};{units},000"),
    ),
    "japanese": till(
        "uriage.csv", lines("日付,商品名,数量", lambda day, item, units, _: f"{day:%Y/%m/%d},{item},{units}")
    ),
    "hungarian": till(
        "eladás.csv", lines("Dátum;Termék;Mennyiség", lambda day, item, units, _: f"{day:%Y.%m.%d}.;{item};{units}")
    ),
    "months in German": till(
        "m.csv",
        lines(
            "Datum;Artikel;Menge",
            lambda day, item, units, _: (
                f"{day.day}. {('Januar', 'Februar', 'März')[day.month - 1]} {day.year};{item};{units}"
            ),
        ),
    ),
    "months in Spanish": till(
        "m.csv",
        lines(
            "Fecha;Producto;Unidades",
            lambda day, item, units, _: (
                f"{day.day} de {('enero', 'febrero', 'marzo')[day.month - 1]} de {day.year};{item};{units}"
            ),
        ),
    ),
    "year, month and day": till(
        "parts.csv",
        lines("Year,Month,Day,Item,Qty", lambda day, item, units, _: f"{day:%Y},{day.month},{day.day},{item},{units}"),
    ),
    "returns in a column": till("r.csv", lines("Date,Time,Product,Qty Sold,Qty Returned", taken_back)),
    "an item column of another name": till(
        "other.csv", lines("Date,Backware,Qty,Cashier", lambda day, item, units, _: f"{day},{item},{units},Ann")
    ),
    "totals of weeks between": till(
        "weeks.csv",
        lines(
            "Date,Item,Quantity",
            lambda day, item, units, _: [
                f"{day},{item},{units}",
                *[f"Week {day:%W} total,,999"] * (day.weekday() == 5),
            ],
        ),
    ),
    "names over two lines": till(
        "names.csv", text(SHOP).replace("date,item,units", '"Sale\nDate","Item\nName","Qty\nSold"', 1)
    ),
    "what is no item beside items": till(
        "wide.csv", by_item().with_columns(Week=pl.lit(3), Temperature=pl.lit(-2.5), Turnover=pl.lit(812.4)).write_csv()
    ),
    "a pivot table": ("pivot.xlsx", pivoted, PLAIN),
    "dates above columns": ("days.xlsx", dates_on_top, PLAIN),
    "brazilian": till(
        "relatorio.csv",
        lines(
            "Data/Hora;Código;Descrição do Produto;Qtd. Vendida;Valor Unit.;Cancelado",
            lambda day, item, units, number: [
                f"{day:%d/%m/%Y} 08:10:00;789;{item};{units},000;R$ 2,50;Não",
                *[f"{day:%d/%m/%Y} 09:00:00;789;{item};12,000;R$ 2,50;Sim"] * (number % 7 == 0),
            ],
            "Total Geral;;;9999,000;;",
        ),
        "cp1252",
    ),
    "swiss": till("kasse.csv", lines("Datum;Artikel;Anzahl;Beleg-Typ", undone("%d.%m.%Y", "Stornobeleg"))),
    "vietnamese": till("kiot.csv", lines("Thời gian;Tên hàng;Số lượng;Trạng thái", undone("%d/%m/%Y", "Đã hủy"))),
    "chinese": till("销售.csv", lines("销售日期;商品名称;销售数量;单据类型", undone("%Y-%m-%d", "已作废", "销售退货"))),
    "russian": till(
        "продажи.csv", lines("Дата;Номенклатура;Количество;Вид операции", undone("%d.%m.%Y", back="Возврат"))
    ),
    "turkish": till("satış.csv", lines("Tarih;Ürün Adı;Miktar;İşlem Türü", undone("%d.%m.%Y", "İptal", "İade"))),
    "italian": till(
        "vendite.csv",
        lines("Data scontrino;Descrizione articolo;Qtà;Operazione", undone("%d/%m/%Y", "Annullata", "Reso cliente")),
    ),
    "polish, cancelled": till("s.csv", lines("Data;Nazwa;Ilość sprzedana;Stan", undone("%Y-%m-%d", "Anulowany"))),
    "czech": till(
        "prodej.csv",
        lines(
            "Datum prodeje;Název položky;Počet ks;Storno",
            lambda day, item, units, number: [
                f"{day:%d.%m.%Y};{item};{units};Ne",
                *[f"{day:%d.%m.%Y};{item};7;Ano"] * (number % 9 == 0),
            ],
        ),
    ),
    "japanese, cancelled": till(
        "uriage.csv", lines("営業日;商品名;販売数;区分", undone("%Y年%m月%d日", "取消", "返品"))
    ),
    "arabic": till(
        "m.csv", lines("التاريخ,الصنف,الكمية", lambda day, item, units, _: f"{day:%d/%m/%Y},{item},{units}")
    ),
    "hebrew": till("m.csv", lines("תאריך,שם פריט,כמות", lambda day, item, units, _: f"{day:%d.%m.%Y},{item},{units}")),
    "thai years": till(
        "t.csv", lines("วันที่,สินค้า,จำนวน", lambda day, item, units, _: f"{day:%d/%m}/{day.year + 543},{item},{units}")
    ),
    "orders that failed": till("woo.csv", lines("Date;Item;Qty;Order Status", undone("%Y-%m-%d", "failed"))),
    "amounts below zero": till(
        "net.csv",
        lines(
            "Date,Receipt,Item,Qty,Net",
            lambda day, item, units, number: [
                f"{day},R{number},{item},{units + 2 * (number % 9 == 0)},{2.5 * (units + 2 * (number % 9 == 0)):.2f}",
                *[f"{day},Q{number},{item},2,-5.00"] * (number % 9 == 0),
            ],
        ),
    ),
    "a flag of returns": till(
        "flag.csv",
        lines(
            "Date,Item,Qty,is_return",
            lambda day, item, units, number: [
                f"{day},{item},{units + 2 * (number % 9 == 0)},0",
                *[f"{day},{item},2,1"] * (number % 9 == 0),
            ],
        ),
    ),
    "a total in Finnish": till("summa.csv", with_totals("Yhteensä")),
    "a column of totals in Greek": till(
        "wide.csv", by_item().with_columns(pl.sum_horizontal("brioche", "müsli", "rolls").alias("Σύνολο")).write_csv()
    ),
    "headers between": till(
        "months.csv",
        lines(
            "Date,Item,Qty",
            lambda day, item, units, number: [*["Date,Item,Qty"] * (number % 60 == 30), f"{day},{item},{units}"],
        ),
    ),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    path = tmp_path_factory.mktemp("plain") / "sales.csv"
    SHOP.write_csv(path)
    return [(order.key[0], order.decision.units) for order in make_orders(read_shop(path))]


@pytest.mark.parametrize("name", TILLS)
def test_every_till_gives_the_same_orders(tmp_path: Path, expected: list[tuple[str, int]], name: str) -> None:
    file, write, reading = TILLS[name]
    write(tmp_path / file)
    shop = read_shop(tmp_path / file, reading=reading)
    found = [(order.key[0], order.decision.units) for order in make_orders(shop)]
    assert [item for item, _ in found] == [item for item, _ in expected]
    # A unit more or less where closed days have a row: the first Sundays are then known to be closed.
    assert [units for _, units in found] == pytest.approx(
        [units for _, units in expected], abs=name == "zeros on closed days"
    )
    assert shop.done.startswith("Done to the sales: ")


@pytest.mark.parametrize(
    ("body", "units"),
    [
        ('2025-01-01,a,"1,900"\n2025-01-02,a,600\n', [1900, 600]),
        ('2025-01-01,a,"1,200,000"\n', [1_200_000]),
        ("2025-01-01,a,1.125\n2025-01-02,a,2.250\n", [1.125, 2.25]),
        ('2025-01-01,a,"1,125 kg"\n2025-01-02,a,"0,250 kg"\n', [1.125, 0.25]),
        ("2025-01-01,a,$1200.50\n2025-01-02,a,$3\n", [1200.5, 3]),
        ("2025-01-01,a,1 200\n2025-01-02,a,\u2212200\n", [1200, 0]),
    ],
)
def test_numbers_as_people_write_them(tmp_path: Path, body: str, units: list[float]) -> None:
    (tmp_path / "sales.csv").write_text("date,item,units\n" + body)
    assert read_shop(tmp_path / "sales.csv").history.sales.units[0, : len(units)].tolist() == units


@pytest.mark.parametrize("body", ['2025-01-01,a,"1,200"\n', "2025-01-01,a,500 g\n2025-01-02,a,1 kg\n"])
def test_numbers_that_may_be_two_are_refused(tmp_path: Path, body: str) -> None:
    (tmp_path / "sales.csv").write_text("date,item,units\n" + body)
    with pytest.raises(CalibrlError, match=r"line 2, column units: '.*' is not a number"):
        read_shop(tmp_path / "sales.csv")


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("Date,Item,Sales", "{day},rolls,$7.50", r"column Sales holds money \(\$7.50\), not units"),
        ("Date,Baker,Backware,Qty", "{day},b{k},w{k},3", "which of Baker, Backware is it"),
    ],
)
def test_what_may_be_meant_otherwise_is_asked_about(tmp_path: Path, header: str, row: str, message: str) -> None:
    rows = [row.format(day=f"2025-01-0{1 + k // 2}", k=k % 2) for k in range(8)]
    (tmp_path / "sales.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(CalibrlError, match=message):
        read_shop(tmp_path / "sales.csv")


def test_a_period_exported_twice_is_refused(tmp_path: Path) -> None:
    again = DAYS.filter(pl.col("date").dt.month() == 2)
    pl.concat([DAYS, again]).write_csv(tmp_path / "sales.csv")
    with pytest.raises(CalibrlError, match="every line from 2025-02-01 to 2025-02-28 is there twice; keep one"):
        read_shop(tmp_path / "sales.csv")


def test_lines_that_chance_repeats_are_kept(tmp_path: Path) -> None:
    """A till that writes a line for each unit, without the time."""
    text = lines("date,item,units", lambda day, item, units, _: [f"{day},{item},1"] * units)
    (tmp_path / "sales.csv").write_text(text)
    assert np.nansum(read_shop(tmp_path / "sales.csv").history.sales.units) == DAYS["units"].sum()


def test_days_and_months_in_two_orders_are_refused(tmp_path: Path) -> None:
    """What a spreadsheet makes of 01/13/2025 and 01/06/2025 where days stand first."""
    day = pl.col("date")
    mixed = pl.when(day.dt.day() <= 12).then(day.dt.strftime("%m/%d/%Y")).otherwise(day.dt.strftime("%d/%m/%Y"))
    DAYS.with_columns(date=mixed).write_csv(tmp_path / "sales.csv")
    with pytest.raises(CalibrlError, match="would be 2025-06-01, far from others; are days and months in one order"):
        read_shop(tmp_path / "sales.csv")


def test_sales_of_one_weekday_may_be_those_of_weeks(tmp_path: Path) -> None:
    weekly = DAYS.group_by(pl.col("date").dt.truncate("1w"), "item", maintain_order=True).agg(pl.col("units").sum())
    weekly.write_csv(tmp_path / "sales.csv")
    assert any("All sales are on Mondays" in note for note in read_shop(tmp_path / "sales.csv").notes)


def test_two_items_sold_alike_are_no_totals(tmp_path: Path) -> None:
    """Nor is one that sells what the only other sells."""
    bun = DAYS.filter(pl.col("item") == "rolls").with_columns(item=pl.lit("sausages"))
    pl.concat([DAYS, bun]).write_csv(tmp_path / "sales.csv")
    assert len(read_shop(tmp_path / "sales.csv").history.keys) == 4


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("Customer type", ("Returning", "New")),
        ("Guest", ("Return visit", "First visit")),
        ("Customer type", ("Return customer", "First visit")),
        ("Town", ("Stornoway", "Tarbert")),
        ("Style", ("Draft", "Bottle")),
        ("Packaging", ("Returnable", "Opakowanie zwrotne")),
    ],
)
def test_words_that_only_look_like_returns_change_nothing(tmp_path: Path, column: str, words: tuple[str, str]) -> None:
    text = lines(f"date,item,units,{column}", lambda day, item, units, k: f"{day},{item},{units},{words[k % 3 == 0]}")
    (tmp_path / "sales.csv").write_text(text)
    assert np.nansum(read_shop(tmp_path / "sales.csv").history.sales.units) == DAYS["units"].sum()


def test_what_columns_say_that_are_not_used_is_shown(tmp_path: Path) -> None:
    text = lines("date,item,units,S/R", lambda day, item, units, number: f"{day},{item},{units},{'SR'[number % 2]}")
    (tmp_path / "sales.csv").write_text(text)
    assert "column S/R (R, S) not used" in read_shop(tmp_path / "sales.csv").done


def test_returns_are_not_taken_off_twice(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("Date,Item,Gross Sales,Returned Quantity,Net Quantity\n2025-01-01,a,9.5,2,5\n")
    assert read_shop(tmp_path / "sales.csv").history.sales.units[0, 0] == 5


def test_years_of_two_digits_in_front_are_asked_about(tmp_path: Path) -> None:
    days = "".join(f"25-{1 + k // 28:02d}-{1 + k % 28:02d},a,3\n" for k in range(80))
    (tmp_path / "sales.csv").write_text("date,item,units\n" + days)
    with pytest.raises(CalibrlError, match="'25-01-01' seems to begin with the year; say --date-format %y-%m-%d"):
        read_shop(tmp_path / "sales.csv")
    shop = read_shop(tmp_path / "sales.csv", reading=Reading(date_format="%y-%m-%d"))
    assert str(shop.history.date) == "2025-03-24"


def test_an_item_may_be_called_total(tmp_path: Path) -> None:
    rows = "2025-01-01,Total Greek yoghurt,3\n2025-01-02,Total Greek yoghurt,4\n,Total dairy,7\n"
    (tmp_path / "sales.csv").write_text("date,item,units\n" + rows)
    shop = read_shop(tmp_path / "sales.csv")
    assert shop.history.keys == (("Total Greek yoghurt", ""),)
    assert "1 line of totals left out" in shop.done


def test_a_table_of_amounts_is_no_table_of_items(tmp_path: Path) -> None:
    rows = "".join(f"2025-01-0{1 + k // 2},{'ab'[k % 2]},{k},{k}.50\n" for k in range(8))
    (tmp_path / "sales.csv").write_text("date,what,net,gross\n" + rows)
    with pytest.raises(CalibrlError, match="no column item and no column units among date, what, net, gross"):
        read_shop(tmp_path / "sales.csv")


def test_a_column_of_how_many_were_cancelled_cancels_no_line(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("date,item,units,void\n2025-01-01,a,9,2\n2025-01-02,a,4,0\n")
    shop = read_shop(tmp_path / "sales.csv")
    assert shop.history.sales.units[0, :2].tolist() == [9, 4]
    assert "column void not used" in shop.done


def test_an_item_in_two_measures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("date,item,qty,UOM\n2025-01-01,rolls,2,case\n2025-01-02,rolls,24,each\n")
    with pytest.raises(CalibrlError, match=r"rolls is counted in case, each \(column UOM\); turn all into one"):
        read_shop(tmp_path / "a.csv")


def test_sold_out_is_the_contrary_of_in_stock(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "date,item,qty,Sold out\n2025-01-01,rolls,2,no\n2025-01-02,rolls,24,Yes\n2025-01-03,rolls,5,\n"
        "2025-01-04,rolls,9,15:30\n"
    )
    shop = read_shop(tmp_path / "a.csv")
    assert shop.history.sales.censored[0, :4].tolist() == [False, True, False, True]
    assert "Sold out taken as the contrary of in_stock" in shop.done


def test_counts_of_what_was_cancelled_cancel_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("date,item,qty,Void Qty\n2025-01-01,rolls,2,0\n2025-01-02,rolls,24,1\n")
    assert np.nansum(read_shop(tmp_path / "a.csv").history.sales.units) == 26


def test_an_unknown_time_zone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("date,item,units\n2025-01-01T22:30:00Z,a,9\n")
    with pytest.raises(CalibrlError, match="'Mars' is unknown; write it like Europe/Berlin"):
        read_shop(tmp_path / "sales.csv", reading=Reading(time_zone="Mars"))
    shop = read_shop(tmp_path / "sales.csv", reading=Reading(time_zone="Asia/Tokyo"))
    assert str(shop.history.date) == "2025-01-02"


def test_a_file_without_an_item_is_about_one(tmp_path: Path) -> None:
    SHOP.filter(pl.col("item") == "rolls").drop("item").write_csv(tmp_path / "rolls.csv")
    shop = read_shop(tmp_path / "rolls.csv")
    assert shop.history.keys == (("rolls", ""),)
    assert "no column item: all is rolls" in shop.done

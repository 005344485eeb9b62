"""The picture of orders hides nothing and names its units."""

from calibrl.shop.files import read_shop
from calibrl.shop.orders import make_orders
from calibrl.shop.page import orders_figure
from tests.shop.conftest import small_shop


def test_the_legend_stands_beside_the_sales(write):
    shop = read_shop(write(small_shop(60, items=("bread", "milk"))))
    figure = orders_figure(make_orders(shop), shop.history)
    assert [ax.get_legend() for ax in figure.axes] == [None, None]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "sold",
        "sold out",
        "expected: median, 50 and 90 %",
        "delivery",
    ]
    assert figure.axes[0].get_ylabel() == "units a day"

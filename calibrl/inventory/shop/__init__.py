"""Order for a shop: its files in, an order for every item out, with the reason in words."""

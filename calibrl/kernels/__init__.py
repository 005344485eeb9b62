"""The bottom layer: numerical operations, each written once."""

"""One self-contained HTML page from results."""

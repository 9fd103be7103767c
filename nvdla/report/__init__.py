"""One self-contained page about a loadable."""

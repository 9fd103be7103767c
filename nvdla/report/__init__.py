"""One self-contained page about a loadable."""

__all__ = ["document", "page", "server"]

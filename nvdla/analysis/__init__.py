"""What can be said of a loadable without running it."""

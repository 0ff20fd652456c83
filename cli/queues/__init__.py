"""Commands about one queue, one feed, or the cells."""

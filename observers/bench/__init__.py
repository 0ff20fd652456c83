"""The benchmark: cq and what one would use instead of it, fed the same updates on the same machine."""

"""What a benchmark measures: cq's queue, and each alternative to it."""

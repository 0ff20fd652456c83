"""`cq demo chat`: messages in feeds, with a receiver that is flooded."""

"""`cq demo`: whole systems on real or generated load, whose processes are killed at random, and their recount."""

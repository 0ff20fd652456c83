"""`cq demo cells`: users in many stores, moved while they are written to."""

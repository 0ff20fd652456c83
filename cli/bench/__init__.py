"""`cq bench`: cq and its alternatives, fed the same updates on the same machine."""

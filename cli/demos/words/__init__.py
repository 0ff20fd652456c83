"""`cq demo words`: the counts of words in text files."""

"""Pass after pass over one bucket: retries, the sizes of passes, and keys that fail.

The room may import passes and the rooms below them. It does not know which worker runs it.
"""

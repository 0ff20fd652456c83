"""The command `cq`: thin, everything it does can be done with the library."""

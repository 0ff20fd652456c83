"""The command `cq`: a thin layer over the library, which can do everything that the command does."""

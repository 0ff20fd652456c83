"""The common part of the demos: processes, which are killed at random, and the comparison with a recount."""

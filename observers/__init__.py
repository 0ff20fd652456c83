"""Everything that runs after the application's commit: workers, their tasks, and the built-in observers.

The modules at the root have the table of built-in observers, distinct counts, and counts of visits. The rooms may
import the rooms of `cq`; of the library, only `cq.testing` imports them.
"""

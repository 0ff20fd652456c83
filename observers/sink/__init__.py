"""What exports to other systems than databases share: the form of changes in JSON, a worker's tasks, and operations.

The room may import `cq.observers.export` and the rooms below it.
"""

"""One pass over one bucket, in one transaction: read, combine, write, report.

A pass has no retries: `cq.bucket.pass_runner` runs passes again and chooses their sizes. It reads a clock only to see
whether code of the application takes longer than a transaction lives. The room may import `cq.app`, administration, the
queue and the rooms below them.
"""

"""One pass over one bucket, in one transaction: read, combine, write, report.

A pass has no clock and no retries: `cq.bucket.pass_runner` runs passes again and chooses their sizes. The room may
import `cq.app`, administration, the queue and the rooms below them.
"""

"""The changelogs of queues as streams of server-sent events, which share one read of the store."""

"""The reads of the dashboard: one sampler per process, whose snapshots serve all open pages. It imports no pages."""

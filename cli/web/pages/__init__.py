"""The pages of the dashboard: from snapshots to view models and charts, one module per noun. They read no store."""

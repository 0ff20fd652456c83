"""Options, output, settings and child processes that the commands share."""

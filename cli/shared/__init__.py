"""Options, output and settings that the commands share."""

"""Commands about the system: worker, status, health, doctor, config."""

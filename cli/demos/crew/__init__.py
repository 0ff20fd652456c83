"""The processes of a demo: started, killed at random, and started again."""

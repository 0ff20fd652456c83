"""Run the command `cq` as `python -m cq`."""

from cq.cli.main import main

main()

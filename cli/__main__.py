"""Run `cq` as `python -m cq.cli`."""

from cq.cli.main import main

main()

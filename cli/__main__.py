"""`python -m cq.cli` is `cq`."""

from cq.cli.main import main

main()

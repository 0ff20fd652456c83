"""The program `cq`, also as `python -m cq`."""

from cq.cli.shared.interrupts import ended_by_interrupts


def main() -> None:
    """Run the command line; see `cq.cli.main`."""
    with ended_by_interrupts():
        from cq.cli.main import main as run
    run()


if __name__ == "__main__":
    main()

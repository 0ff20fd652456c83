"""`cq demo cells`: nothing lost and nobody in two cells, though its processes are killed."""

from __future__ import annotations

from tests.cli.conftest import Cli, Here


def test_users_are_where_they_are_said_to_be_whoever_is_killed(cli: Cli) -> None:
    command = ("demo", "cells", "--number", "60", "--users", "5", "--cells", "3", "--movers", "1")

    ended = cli.run(
        *command,
        *("--deletions", "1", "--writers", "1", "--kill-every", "1.5", "--seed", "5"),
        *("--folder", "kept", "--json"),
    )

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    assert (found["seed"], found["users"] + found["deleted"]) == (5, 5)
    assert found["deleted"] or found["writes"] == 60 + 25 * found["adopted"]
    assert (sum(found["cells"].values()), found["cells"]["cell-1"]) == (found["users"], 0)
    listed = cli.run("cells", "list", "--directory", "embedded:kept/directory.db", "--json").rows()
    assert {row["cell"]: row["users"] for row in listed} == found["cells"]


def test_a_store_that_has_cells_is_left_alone(here: Here, cli: Cli) -> None:
    assert here("cells", "add", "own", "embedded:own.db").status == 0

    ended = here("demo", "cells", "--store", cli.url)

    assert (ended.status, ended.out) == (2, "")
    assert "the store has cells, which the demo must not use" in ended.err

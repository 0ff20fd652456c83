"""`cq demo tags`: exactly what a plain count of the events gives, though its processes are killed."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import cq
from tests.cli.conftest import Cli, Here


def test_the_counts_are_those_of_the_file_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    rng = Random(3)
    lines, total = [], Counter[str]()
    for number in range(6_000):
        tag, by = f"täg {int(rng.paretovariate(1)) % 500}", rng.choice((1, 1, -1))
        total[tag] += by
        lines.append(json.dumps({"entity": f"e{number % 70}", "tag": tag, "by": by}) + "\n")
    (cli.folder / "events.jsonl").write_text("".join(lines))
    command = (
        "demo",
        "tags",
        "--events",
        "events.jsonl",
        "--servers",
        "2",
        "--kill-every",
        "0.5",
        "--top",
        "9",
    )

    ended = cli.run(*command, "--seed", "5", "--json")

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    expected = {tag: count for tag, count in total.items() if count}
    top = sorted(expected.items(), key=lambda item: (-item[1], item[0]))[:9]
    assert (found["seed"], found["increments"], found["tags"]) == (5, 6_000, len(expected))
    assert [(entry["key"], entry["score"]) for entry in found["cloud"]] == top
    assert dict(cq.CombineQueue("demo_tags").scan(demo_db)) == expected
    assert found["kills"] > 0
    writes = found["writes"]
    assert writes["one UPDATE per change"] == {"transactions": 6_000, "operations": 6_000}
    assert 0 < writes["web servers"]["transactions"] < 2_000


def test_a_line_that_is_no_event_is_named(here: Here, cli: Cli) -> None:
    (cli.folder / "events.jsonl").write_text(
        '{"entity": "a", "tag": "b", "by": 1}\n\n{"entity": "a", "tag": 1}\n'
    )

    ended = here("demo", "tags", "--events", "events.jsonl", "--seed", "1")

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith('cq: events.jsonl, line 3: expected {"entity": TEXT')

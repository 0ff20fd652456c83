"""FoundationDB's binding tester with the embedded store beside a cluster: random programs must give the same results.

    python -m tests.binding_tester SOURCE --cluster-file FILE --test-name api --num-ops 1000 --seed 1

`SOURCE` is a checkout of FoundationDB's source, of which this runs `bindings/bindingtester`; the other arguments are
those of that program. The cluster must be empty, as the tester clears it. The embedded store runs the same program:
the instructions are copied into it, and the results back, where the binding tester compares them.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import cq
from cq.store.embedded import Database, FDBError, KeySelector
from cq.store.embedded.future import Future

COPIED = 1000
"""Keys in one transaction of a copy."""


def main() -> None:
    """Compare the two stores, or be the stack machine on one of them: the binding tester starts both."""
    role, *arguments = sys.argv[1:]
    if role in MACHINES:
        source, prefix, version, cluster = arguments
        MACHINES[role](Path(source), prefix, int(version), cluster)
    else:
        tester = Path(role) / "bindings" / "bindingtester" / "bindingtester.py"
        machines = [f"{sys.executable} -m tests.binding_tester {name} {role}" for name in MACHINES]
        run(tester, machines[0], "--compare", machines[1], "--no-tenants", *arguments)


def on_cluster(source: Path, prefix: str, version: int, cluster: str) -> None:
    """Run the instructions on the cluster."""
    run(stack_machine(source), prefix, str(version), cluster)


def on_embedded_store(source: Path, prefix: str, version: int, cluster: str) -> None:
    """Run the instructions on an embedded store, and copy what it then has to the cluster."""
    import fdb  # needs the library of its client, which tests without a cluster do not
    import fdb.impl

    fdb.impl.transactional = cq.transactional  # for the directory layer, which api_version imports
    fdb.api_version(version)
    original: Any = fdb.open(cluster)
    with tempfile.TemporaryDirectory() as folder:
        copy: Any = Database(f"{folder}/store.db")
        copy_all(original, copy)
        fdb.open = lambda *_: copy
        fdb.transactional = cq.transactional
        fdb.KeySelector, fdb.FDBError, fdb.Future = KeySelector, FDBError, Future
        run(stack_machine(source), prefix, str(version), cluster)
        copy_all(copy, original)
        copy.close()


MACHINES = {"cluster": on_cluster, "embedded": on_embedded_store}


def stack_machine(source: Path) -> Path:
    """The program that runs the instructions by the Python binding."""
    return source / "bindings" / "python" / "tests" / "tester.py"


def run(program: Path, *arguments: str) -> None:
    """Run a program of FoundationDB in this process, with the binding that is installed here."""
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


def copy_all(source: Any, target: Any) -> None:
    """Make the keys of a store those of another one."""
    del target[b"":b"\xff"]
    begin = b""
    while rows := list(source.get_range(begin, b"\xff", limit=COPIED)):
        target_rows = [(bytes(row.key), bytes(row.value)) for row in rows]
        cq.transact(target, lambda tr, rows=target_rows: [tr.set(*row) for row in rows])  # type: ignore[misc]
        begin = target_rows[-1][0] + b"\x00"


if __name__ == "__main__":
    main()

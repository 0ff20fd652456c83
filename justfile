# What contributors do, for `just` (https://just.systems). CONTRIBUTING.md explains each.

# Set up .venv
setup:
    python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]'

# Run tests: all, or those of some paths
test *paths:
    .venv/bin/python -m pytest -n logical {{paths}}

# Check linters, format and types
check:
    .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy

# Run the simulation, such as `just simulate queues 100`
simulate system="queues" seeds="20":
    .venv/bin/python -m tests.simulation --system {{system}} --seeds {{seeds}}

# Write the generated pages, and build the site in build/site
docs:
    .venv/bin/python docs/reference.py
    .venv/bin/mkdocs build --strict --config-file docs/site/mkdocs.yml

"""An application's own combiner: mean and extremes of measurements, kept as (count, sum, least, greatest)."""

import tempfile

import cq
from cq.observers.worker import Worker


def summarise(key, values):
    """Associative: a summary of summaries is the summary of all measurements."""
    counts, sums, least, greatest = zip(*values, strict=True)
    return [sum(counts), sum(sums), min(least), max(greatest)]


summary = cq.Combiner("summary", 1, summarise, value_types=("list",))
app = cq.App()  # in production: `cq worker --app this_module:app`
readings = app.queue("readings", key=str, value=list, combiner=summary)


@cq.transactional
def measure(tr, sensor, number):
    readings.add(tr, {sensor: [1, number, number, number]})


@cq.transactional
def mean_and_range(tr, sensor):
    count, total, least, greatest = readings.get(tr, sensor, pending=True)
    return total / count, least, greatest


def main():
    db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
    app.configure_all(db)

    for number in [21, 19, 26]:
        measure(db, "attic", number)
    print(mean_and_range(db, "attic"))
    Worker(db, app).drain()
    measure(db, "attic", 30)
    print(mean_and_range(db, "attic"))


if __name__ == "__main__":
    main()

# Prints:
# (22.0, 19, 26)
# (24.0, 19, 30)

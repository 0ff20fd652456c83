"""Money between accounts: the payer's transfer is decided once, and the pass that decides it pays the payee in."""

import tempfile

import cq
from cq.observers.worker import Worker


def decide(account, balance, request):
    """A request is ["in", amount], or ["to", payee, amount], which is answered with whether it is paid."""
    balance = balance or 0
    match request:
        case ["in", amount]:
            return balance + amount, True
        case ["to", _, amount] if 0 < amount <= balance:
            return balance - amount, True
    return balance, False


def pay_in(tr, decisions):
    """Ask for the payee's deposit in the transaction that has charged the payer: both happen, or neither."""
    for each in decisions:
        if each.answer and each.request[0] == "to":
            _, payee, amount = each.request
            accounts.ask(tr, payee, ["in", amount])


app = cq.App()  # in production: `cq worker --app this_module:app`
accounts = app.queue(
    "accounts", key=str, value=int, decider=cq.Decider("transfers", 1, decide, observer=pay_in)
)


def main():
    db = cq.open(f"embedded:{tempfile.mkdtemp()}/example.db")
    app.configure_all(db)

    def ask(tr):
        accounts.ask(tr, "ada", ["in", 100])
        return [accounts.ask(tr, "ada", ["to", payee, 70]) for payee in ("bob", "cyd")]

    tickets = cq.transact(db, ask)
    Worker(db, app).drain()
    print([accounts.answer(db, each) for each in tickets])
    print(sorted(accounts.scan(db)))


if __name__ == "__main__":
    main()

# Prints:
# [True, False]
# [('ada', 30), ('bob', 70)]

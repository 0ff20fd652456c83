"""Canaries of sessions, see `canary`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cq.observers.sessions import NAME
from cq.runtime import token_bytes
from cq.store.transact import transact
from tests.simulation.canary import Canaries, observes

sessions = Canaries("sessions")


@sessions.patches()
def counts_joined_sessions_again() -> Any:
    """The sums get the sessions of a visitor anew with each visit."""
    return observes(
        NAME,
        lambda count, tr, changes: count(tr, [replace(each, old=None) for each in changes]),
    )


@sessions.patches()
def subtracts_sessions_of_deleted_visitors() -> Any:
    """The sessions of a day go with its visitors."""
    return observes(
        NAME,
        lambda count, tr, changes: count(
            tr, [replace(each, new=[]) if each.new is None else each for each in changes]
        ),
    )


@sessions.patches()
def adds_sessions_beside_the_pass() -> Any:
    """The sums are changed in a transaction of their own, again if the pass is tried again."""
    return observes(NAME, lambda count, tr, changes: transact(tr.db, lambda own: count(own, changes)))


@sessions.replaces("cq.config.expiry.ExpirySpec.latest_due", seed=54)
def deletes_visitors_of_days_that_go_on(latest_due: Any, *given: Any) -> Any:
    """The visitors of a day are deleted while visits of it are taken."""
    return latest_due(*given) + 200


@sessions.replaces("cq.observers.visits.VisitorIds._salt", seed=9, also={"ids"})
def uses_the_salt_that_it_has_drawn(salt: Any, self: Any, day: str) -> Any:
    """A process that finds no salt of a day uses its own one, though another process may have been earlier."""
    if (
        day not in self._known
        and transact(self._db, lambda tr: self._salts.get(tr, day, pending=True)) is None
    ):
        new = token_bytes(16)
        transact(self._db, lambda tr: self._salts.add(tr, {day: new}))
        self._known[day] = new
    return salt(self, day)

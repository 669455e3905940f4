"""What went wrong on the host, asked for outside of jit, where it can be raised."""

from typing import Any

import numpy as np

from statelesschat.core.types import Status
from statelesschat.host.bridge import raised
from statelesschat.host.desk import desks
from statelesschat.host.session import Outcome
from statelesschat.host.visit import Place, visits_of


class HostError(RuntimeError):
    """Rows that ended with status HOST_ERROR; ``faults`` says of each, by its index in the batch, why."""

    def __init__(self, message: str, faults: dict[int, str]) -> None:
        super().__init__(message)
        self.faults = faults


def faults(states: Any) -> dict[int, str]:
    """Why rows ended with HOST_ERROR, by their index in the batch. States of an environment, axis B or none."""
    return {row: told for row, (told, _) in _found(states).items()}


def check(states: Any) -> None:
    """Raise what went wrong on the host in these states; an interrupt that fell into a call of the host, too.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed while the host ran.
        HostError: a row ended with HOST_ERROR, from the exception behind it, if there was one.
    """
    fallen = raised()
    if fallen is not None and not isinstance(fallen, Exception):
        raise fallen
    found = _found(states)
    if not found:
        return
    told = {row: detail for row, (detail, _) in found.items()}
    first = next(iter(told))
    error = next((error for _, error in found.values() if error is not None), fallen)
    more = f", and {len(told) - 1} more" if len(told) > 1 else ""
    raise HostError(f"row {first}: {told[first]}{more}", told) from error


def _found(states: Any) -> dict[int, tuple[str, BaseException | None]]:
    status = np.atleast_1d(np.asarray(states.chat.status))
    tickets = [np.atleast_2d(np.asarray(visit.ticket)) for visit in visits_of(states)]
    found = {}
    for row in np.flatnonzero(status == int(Status.HOST_ERROR)).tolist():
        known = (_fault(ticket[row].tolist()) for ticket in tickets)
        found[row] = next((fault for fault in known if fault[0]), ("nothing more is known of it", None))
    return found


def _fault(ticket: list[int]) -> tuple[str, BaseException | None]:
    """What is known of a ticket's fault; an empty text if it is not the one that failed."""
    outcome = Outcome(ticket[Place.OUTCOME])
    if outcome is Outcome.OK:
        return "", None
    desk = desks.get(ticket[Place.HANDLE])
    if desk is None:
        return f"{outcome.name}: it was reached by a handle of another program, or of one that is closed", None
    detail, error = desk.fault(ticket[Place.SLOT], ticket[Place.GENERATION])
    if not detail and outcome in (Outcome.TIMEOUT, Outcome.REFUSED):  # told to the model: no fault
        return "", None
    return f"{outcome.name}: {detail}" if detail else outcome.name, error

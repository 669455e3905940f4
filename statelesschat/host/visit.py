"""What a conversation carries of its dealings with the host, and what went wrong in them."""

import dataclasses
import enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class Place(enum.IntEnum):
    """Entries of ``Visit.ticket``."""

    HANDLE = 0  # of the desk
    SLOT = 1  # of the episode's session; -1: none yet
    GENERATION = 2
    CALLS = 3  # answered in this episode
    WAITS = 4  # the latest is not answered yet
    OUTCOME = 5  # of the latest, an `Outcome`


@partial(jax.tree_util.register_dataclass, data_fields=["ticket"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Visit:
    """A row's ticket. It is plain data: copied with the state, checkpointed with it, and stale if it is old."""

    ticket: Int[Array, "6"]  # int32, see `Place`

    @classmethod
    def fresh(cls, handle: int) -> "Visit":
        """Of a row that has not been there yet."""
        ticket: Any = np.asarray([handle, -1, 0, 0, 0, 0], np.int32)
        return cls(ticket)

    @staticmethod
    def renewed(fresh: "Visit", kept: "Visit") -> "Visit":
        """Of a row that begins anew: the slot stays, in a new generation."""
        generation = kept.generation + (kept.slot >= 0).astype(jnp.int32)
        zero = jnp.int32(0)
        return Visit(jnp.stack([jnp.asarray(fresh.ticket)[Place.HANDLE], kept.slot, generation, zero, zero, zero]))

    @property
    def handle(self) -> Int[Array, ""]:
        """Of the desk, int32."""
        return self.ticket[..., Place.HANDLE]

    @property
    def slot(self) -> Int[Array, ""]:
        """Of the episode's session, int32; -1: none yet."""
        return self.ticket[..., Place.SLOT]

    @property
    def generation(self) -> Int[Array, ""]:
        """Of the slot, int32."""
        return self.ticket[..., Place.GENERATION]

    @property
    def calls(self) -> Int[Array, ""]:
        """Answered in this episode, int32."""
        return self.ticket[..., Place.CALLS]

    @property
    def waits(self) -> Bool[Array, ""]:
        """Whether the latest call is not answered yet."""
        return self.ticket[..., Place.WAITS] != 0

    @property
    def outcome(self) -> Int[Array, ""]:
        """An `Outcome`, int32, of the latest call."""
        return self.ticket[..., Place.OUTCOME]

    def after(
        self, acts: Array, ready: Array, broken: Array, slot: Array, generation: Array, outcome: Array, ran: Array
    ) -> "Visit":
        """The ticket after a call: the next has the next number, unless this has to come again or ran nothing."""
        told = acts & ~broken
        new = {
            Place.HANDLE: self.handle,
            Place.SLOT: jnp.where(told, slot, self.slot),
            Place.GENERATION: jnp.where(told, generation, self.generation),
            Place.CALLS: self.calls + (ready & ran).astype(jnp.int32),
            Place.WAITS: jnp.where(acts, acts & ~ready, self.waits).astype(jnp.int32),
            Place.OUTCOME: jnp.where(ready, outcome, self.outcome),
        }
        return Visit(jnp.stack([new[place] for place in Place]))


def visits_of(states: Any) -> list[Visit]:
    """The tickets in the states of an environment, the innermost combinator's first."""
    return [entry for entry in states.inner if isinstance(entry, Visit)]

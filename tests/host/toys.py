"""Graders that do what an answer says; they are loaded by workers, so this imports nothing heavy."""

import os
import time


def act(response: str, reference: str) -> float:
    """1.0 for an answer equal to the reference; or it hangs, crashes, raises, or returns no number."""
    if response == "hang":
        time.sleep(1000)
    if response == "crash":
        os._exit(3)
    if response == "raise":
        raise RuntimeError("no idea")
    if response == "nan":
        return float("nan")
    if response.startswith("wait "):
        until = response.removeprefix("wait ")
        while not os.path.exists(until):
            time.sleep(0.01)
    return float(response == reference)


def length(response: str, reference: str) -> float:
    """How many characters both have."""
    return len(response) + 1000.0 * len(reference)

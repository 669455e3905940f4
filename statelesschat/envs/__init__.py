"""Environments by composition: an `Env` is three pure functions, and everything else a function from Env to Env."""

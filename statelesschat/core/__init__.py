"""The device core: types, transitions and views. Imports jax and nothing of the host."""

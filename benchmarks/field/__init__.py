"""The field measured beside us; `benchmarks/peers.py` runs it."""

"""Scoring stored conversations again, without a model."""

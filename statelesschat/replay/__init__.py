"""Replaying recorded conversations through the core, every prompt checked against the tokenizer's own template."""

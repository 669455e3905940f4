"""Tasks: a source of rows made into an environment with its reward and a table."""

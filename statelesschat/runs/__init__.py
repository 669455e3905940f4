"""The main job: a small model learns a task on the embedded defaults, from nothing, in one program."""

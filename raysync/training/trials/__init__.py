"""Tries a task before the run: its samples, two training steps, its metrics, the cost of a step."""

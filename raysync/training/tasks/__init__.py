"""Tasks: what is trained, and how it is judged."""

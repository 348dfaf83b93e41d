"""Step times of any trainer, from what it wrote."""

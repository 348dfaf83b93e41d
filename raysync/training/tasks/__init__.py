"""Tasks: model, data, loss and metrics."""

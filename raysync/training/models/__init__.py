"""Built-in models, their initial weights, and the cost of a step."""

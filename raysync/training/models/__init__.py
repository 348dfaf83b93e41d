"""Built-in models, their initial weights, and what a step of a model costs."""

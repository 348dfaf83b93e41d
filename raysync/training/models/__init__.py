"""Built-in models, and the initial weights of any."""

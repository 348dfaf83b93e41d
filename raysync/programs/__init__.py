"""Programs: what an actor does with each message, on every engine; no Ray, no clock."""

"""The Ray engine: real actors, real seconds. Nothing here decides anything; the machine does."""

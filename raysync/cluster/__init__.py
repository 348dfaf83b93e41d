"""The Ray engine: real actors, real seconds. It makes and carries out no decisions."""

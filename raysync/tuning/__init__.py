"""Ray Tune sweeps: the grid of an experiment file, one trial a combination."""

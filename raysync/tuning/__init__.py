"""Ray Tune sweeps over an experiment's settings, and the search for the switch point."""

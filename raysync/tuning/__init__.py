"""Ray Tune sweeps: the grid of an experiment file, one trial a combination; and the search for the
switch point.
"""

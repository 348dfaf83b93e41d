"""The processes of a run on Ray."""

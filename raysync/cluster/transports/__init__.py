"""How vectors travel between processes of a run on Ray."""

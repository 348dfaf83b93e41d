"""One run of an experiment on an engine, with its record: begun, followed, recovered, resumed."""

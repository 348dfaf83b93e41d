"""Start, record, recover and resume one run of an experiment."""

"""`raysync advise`: which paradigm, which parameters and which batch shares suit a cluster."""

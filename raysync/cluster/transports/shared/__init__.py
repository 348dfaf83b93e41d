"""A transport in memory that the processes of one node share."""

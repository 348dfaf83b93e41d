"""The pure core: events go in, decisions come out. It imports the standard library and msgspec,
reads no clock, draws nothing at random, does no I/O, and imports no user code.
"""

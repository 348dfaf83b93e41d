"""The pure core: events go in, decisions come out; standard library only, no clock, no randomness,
no I/O, no imports of user code.
"""

"""The Ray backend: real actors, real seconds. Nothing here decides anything, and nothing carries
decisions out.
"""

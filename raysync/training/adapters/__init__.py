"""Adapters to other libraries, one thin file each.

No library is imported before an experiment asks for it by name: `registry` has the names.
"""

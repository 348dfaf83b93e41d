"""Statistics, figures and reports of records. Only records are read here; neither Ray nor torch is
imported.
"""

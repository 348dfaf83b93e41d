"""The Grafana dashboards of raysync, made from the registry of metrics: `python -m dashboards`
writes `boards/*.json`.

Users get the JSON (in the package it is `raysync/dashboards`); grafana-foundation-sdk is needed
only to make it.
"""

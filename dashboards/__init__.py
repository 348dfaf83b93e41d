"""The Grafana dashboards of raysync, generated from the registry of metrics: `python -m dashboards`
writes `boards/*.json`.

Users get the JSON (`raysync/dashboards` in the package); grafana-foundation-sdk is needed only to
generate it.
"""

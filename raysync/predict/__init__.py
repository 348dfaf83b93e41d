"""What would happen if: `raysync whatif`, `raysync advise`, and the bottleneck of a run."""

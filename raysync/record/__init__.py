"""The record of a run: written while the run goes on, read as pandas frames; no Ray, no torch."""

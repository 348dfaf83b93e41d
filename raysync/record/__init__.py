"""What a run leaves behind: written as it happens, read as pandas frames; no Ray, no torch."""

"""Tasks that come with raysync."""

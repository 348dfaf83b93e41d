"""Statistics, figures and reports, made from records alone; imports neither Ray nor torch."""

"""One driver for every backend and every topology; it knows neither Ray nor torch."""

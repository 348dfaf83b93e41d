"""Files of a trained model, and of weights from elsewhere."""

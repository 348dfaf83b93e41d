"""Files of models and of states, as safetensors."""

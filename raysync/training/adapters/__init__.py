"""Adapters to other libraries: `hf:`, `lightning:`, `timm:`, `torchvision:`."""

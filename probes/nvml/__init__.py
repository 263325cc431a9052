"""NVIDIA GPUs through NVML: asked in a process of its own (`child`), which a hung driver call can cost (`helper`)."""

"""Which GPU reaches which, and how: from NVML or a file; and how fast peers really are, as measured."""

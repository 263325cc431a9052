"""The parts of `gpu_check.py`: sections that check and time the store's kernels on a GPU, and what runs them.

A section is a module with `run(check)`, named in `sections.py`; it says what it found in rows (`rows.py`). Sections run
in a process of their own (`worker.py`), which the command watches (`runner.py`): one that crashes, hangs or leaves the
GPU in error costs itself and no other. Only sections import torch.
"""

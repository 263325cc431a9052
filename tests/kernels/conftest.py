"""Without a CUDA device the kernels run under Triton's interpreter: that is decided before they are imported."""

import importlib.util
import os


def _cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if not _cuda():
    os.environ["TRITON_INTERPRET"] = "1"

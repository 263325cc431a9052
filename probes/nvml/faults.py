"""NVML's error codes as states: what one field, one device or the whole driver has come to."""

from __future__ import annotations

from typing import Literal

FieldState = Literal["unsupported", "no_permission", "no_data", "blank", "out_of_range", "reset_required", "failed"]
"""Why a field has no number."""

NO_DRIVER = "no NVIDIA driver here: libnvidia-ml.so.1 was not found (in a container, start it with the NVIDIA runtime)"
NO_PACKAGE = "the package nvidia-ml-py is missing: pip install '.[nvml]' in kvscope's checkout"
NO_GPU = "the NVIDIA driver sees no GPU"

_FIELD: dict[int, FieldState] = {
    2: "unsupported",  # INVALID_ARGUMENT: a link or a field that this driver does not know
    3: "unsupported",
    4: "no_permission",
    6: "no_data",  # NOT_FOUND
    10: "no_data",  # TIMEOUT
    13: "unsupported",  # FUNCTION_NOT_FOUND
    16: "reset_required",
    21: "no_data",
    22: "unsupported",  # VGPU_ECC_NOT_SUPPORTED
    25: "unsupported",  # ARGUMENT_VERSION_MISMATCH
    26: "unsupported",  # DEPRECATED
    27: "no_data",  # NOT_READY
}
_LOST = {15: "the driver says that it is lost", 28: "the driver does not find it any more"}
_DRIVER: dict[int, tuple[str, str]] = {
    1: ("gone", "the NVIDIA driver was shut down"),
    4: ("no-permission", "the NVIDIA driver may not be asked by this user (see the rights of /dev/nvidiactl)"),
    9: ("gone", "the NVIDIA driver is not loaded"),
    12: ("unsupported", NO_DRIVER),
    18: ("unsupported", "the NVIDIA driver in the kernel and its library are of different versions: load it anew"),
}
_ENDS_DRIVER = frozenset((1, 9, 18))


NO_ANSWER = (UnicodeDecodeError, MemoryError, OverflowError)
"""What nvidia-ml-py raises, beside its own errors, of an answer that cannot be one: a text that is no UTF-8, a count of
things that no memory holds."""


def said(error: Exception) -> str:
    """An error of NVML in the driver's words, where these are a text."""
    try:
        return str(error)
    except UnicodeDecodeError:
        return "an error without a text"


class DriverGoneError(Exception):
    """The driver as a whole cannot be asked: ``state`` is one of a source's states, the text says why."""

    def __init__(self, state: str, words: str) -> None:
        super().__init__(words)
        self.state = state
        self.words = words


class DeviceLostError(Exception):
    """One device cannot be asked any more."""


def field_state(code: int, said: str) -> FieldState:
    """What a code makes of one field. Raises ``DeviceLostError`` and ``DriverGoneError`` for those that say more."""
    if code in _LOST:
        raise DeviceLostError(_LOST[code])
    if code in _ENDS_DRIVER:
        raise driver_gone(code, said)
    return _FIELD.get(code, "failed")


def driver_gone(code: int, said: str) -> DriverGoneError:
    state, words = _DRIVER.get(code, ("unsupported", f"the NVIDIA driver does not start: {said} (NVML error {code})"))
    return DriverGoneError(state, words)

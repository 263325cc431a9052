"""A pool on a device, with its bitmap and block tables beside it: nothing of them is read back while a model runs."""

from kvstore.device.pool import DevicePool, Step

__all__ = ["DevicePool", "Step"]

"""RDMA ports and their network interfaces, as the kernel shows them in sysfs."""

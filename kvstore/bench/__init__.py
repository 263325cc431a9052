"""What `kvstore bench` measures; each module has `run(argv) -> int`."""

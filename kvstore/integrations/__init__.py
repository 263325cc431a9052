"""What lets other programs keep their KV in the store: one package each, imported only by who uses it."""

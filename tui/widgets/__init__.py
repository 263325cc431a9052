"""Widgets: each owns a part of the screen, takes a snapshot, draws its cells, and paints only lines that changed."""

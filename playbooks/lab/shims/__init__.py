"""Preload shims that make a real process meet a real trouble; compiled where they are used."""

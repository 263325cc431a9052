"""Replays of request traces against a real cluster."""

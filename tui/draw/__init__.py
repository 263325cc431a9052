"""Drawing: pure functions from a snapshot to cells. No textual here, so every picture can be tested as text."""

"""The instrumented reference store."""

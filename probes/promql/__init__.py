"""PromQL over live samples."""

"""All that yields numbers: series, PromQL, sources, engine adapters."""

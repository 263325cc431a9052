"""kvstore as an L2 of LMCache: a plugin adapter, out of LMCache's tree.

    {"type": "plugin", "module_path": "kvstore.integrations.lmcache", "class_name": "KvstoreL2Adapter",
     "adapter_params": {"targets": "cluster.json"}}

Tried with LMCache 0.5.6: its own check of adapters (`make test-lmcache`) and its own bench (`make bench-peers`).
"""

from kvstore.integrations.lmcache.adapter import KvstoreL2Adapter

__all__ = ["KvstoreL2Adapter"]

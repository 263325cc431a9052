"""The live lab: a real store of several processes, a real workload, one fault, and a diagnosis that is scored."""

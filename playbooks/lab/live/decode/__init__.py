"""The process of a decode loop: a model, its KV in a pool on a device, and a page. Imported only by that process."""

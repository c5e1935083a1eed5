"""The transformers library as an independent judge of parameters, caches and FLOPs."""

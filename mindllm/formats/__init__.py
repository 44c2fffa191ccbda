"""Bytes on disk, without torch and without models: safetensors, torch archives, torch_dist, restricted pickles.

They are written by hand, tensor by tensor, because the libraries want a whole shard or model in memory, import torch
(2 to 3 of the 4 seconds that a small conversion takes), or unpickle what they are given.
"""

"""The formats that are converted from and to: each a source and a target of weights."""

"""Prompt templates: from conversations to text with marked answers, by a YAML file or a tokenizer's own jinja."""

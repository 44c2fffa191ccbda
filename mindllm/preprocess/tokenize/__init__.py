"""From text with marked answers to token ids and labels."""

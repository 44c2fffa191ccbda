"""The program behind preprocess_data.py: rows -> handler -> template -> tokens -> .bin/.idx, columns and manifest."""

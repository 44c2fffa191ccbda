"""What is written: parts of rows, their order and packing, and the commit that makes them visible."""

"""The pages of docs/ that the code is the source of: `make docs` writes them, a test holds them to it."""

"""Chained block hashes: algorithms, profiles, extra keys, `BlockHasher`."""

"""The pool of KV blocks that hashes address."""

# C types for `scheduling.py` where it is compiled; interpreted, nothing of this exists.
cpdef Py_ssize_t last_hit(Py_ssize_t num_tokens, Py_ssize_t alignment, Py_ssize_t drop) except? -1

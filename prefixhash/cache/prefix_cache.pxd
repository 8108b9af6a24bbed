# C types for `prefix_cache.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.cache_state cimport CacheState
from prefixhash.cache.tables cimport Held


cdef class PrefixCache(CacheState):
    @cython.locals(held=Held, helds=list)
    cdef list _batch(self, object requests)
    @cython.locals(held=Held)
    cdef object _admit(
        self, object request, object hit, Py_ssize_t new, Py_ssize_t lookahead, Py_ssize_t encoder,
        bint whole,
    )
    @cython.locals(number=Py_ssize_t)
    cdef Py_ssize_t _check_commit(self, Held held, object num_computed) except? -1
    @cython.locals(closed=Py_ssize_t)
    cdef object _commit(self, Held held, Py_ssize_t num_computed)
    @cython.locals(end=Py_ssize_t)
    cdef object _publish(self, Held held, Py_ssize_t num_computed, object ends)

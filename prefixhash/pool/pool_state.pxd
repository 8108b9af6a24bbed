# C types for `pool_state.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.pool.index cimport HashIndex


cdef class PoolState:
    cdef public HashIndex _index
    cdef public object _log
    cdef public long long[::1] _next
    cdef public long long[::1] _prev
    cdef public long long[::1] _refs
    cdef public Py_ssize_t _num_evictions
    cdef public Py_ssize_t _num_free
    cdef public object _residency
    cdef public object enable_caching
    cdef public object num_blocks

    @cython.locals(found=list, served=dict)
    cpdef list longest_prefix(self, object block_hashes, object group=*)

# C types for `pool_state.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.pool.index cimport HashIndex


cdef class PoolState:
    cdef public HashIndex _index
    cdef public object _log
    cdef public int[::1] _next
    cdef public int[::1] _prev
    cdef public int[::1] _refs
    cdef public Py_ssize_t _num_evictions
    cdef public Py_ssize_t _num_free
    cdef public Py_ssize_t _num_holds
    cdef public object _residency
    cdef public object enable_caching
    cdef public object num_blocks

    @cython.locals(served=dict)
    cpdef object lookup(self, object block_hash, object group=*)

    cpdef object _find(self, object block_hash, object group)

    cpdef _change_over(self)

    cpdef list longest_prefix(self, object block_hashes, object group=*, object limit=*)

    @cython.locals(found=list)
    cpdef list _find_run(self, object block_hashes, object group, object limit)

    @cython.locals(refs="int[::1]", block=Py_ssize_t, free=Py_ssize_t)
    cpdef object count_free(self, object block_ids)

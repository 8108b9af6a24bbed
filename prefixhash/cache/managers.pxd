# C types for `managers.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.tables cimport BlockTable
from prefixhash.pool.block_pool cimport BlockPool


cpdef Py_ssize_t ceil_div(Py_ssize_t value, Py_ssize_t divisor) except? -1


cdef class AttentionManager:
    cdef public object shape
    cdef public Py_ssize_t group
    cdef public BlockPool pool
    cdef public Py_ssize_t alignment
    cdef public Py_ssize_t block_size
    cdef public Py_ssize_t margin
    cdef public Py_ssize_t match_margin
    cdef public object cap

    @cython.locals(blocks=Py_ssize_t, num_tokens=Py_ssize_t, found=list, ids=list)
    cpdef tuple find(self, object hashes, Py_ssize_t max_tokens, object groups)
    cpdef list lookup_all(self, object block_hash, object groups)
    cpdef Py_ssize_t skipped_tokens(self, Py_ssize_t num_computed) except? -1
    cpdef Py_ssize_t blocks_wanted(
        self, BlockTable table, Py_ssize_t tokens, Py_ssize_t main, Py_ssize_t encoder
    ) except? -1
    cpdef Py_ssize_t num_slots(self, BlockTable table) except? -1
    cpdef Py_ssize_t next_release(self, Py_ssize_t num_computed) except? -1
    @cython.locals(required=Py_ssize_t, first=Py_ssize_t, new=Py_ssize_t)
    cpdef Py_ssize_t blocks_to_admit(
        self, object hit, Py_ssize_t num_computed, Py_ssize_t tokens, Py_ssize_t main,
        Py_ssize_t encoder, bint capped,
    ) except? -1
    cpdef grow(self, BlockTable table, Py_ssize_t main, list new)
    @cython.locals(last=Py_ssize_t, place=Py_ssize_t, places=list, blocks=list)
    cpdef list out_of_reach(self, BlockTable table, Py_ssize_t num_computed)


cdef class SlidingWindowManager(AttentionManager):
    cdef public Py_ssize_t window
    cdef public Py_ssize_t span

    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, place=Py_ssize_t)
    cpdef object _last_missing(self, object hashes, Py_ssize_t start, Py_ssize_t end, object groups)


cdef class ChunkedLocalManager(AttentionManager):
    cdef public Py_ssize_t chunk

# C types for `publish.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.managers cimport AttentionManager
from prefixhash.cache.tables cimport BlockTable, Held
from prefixhash.pool.block_pool cimport BlockPool


cdef class Run:
    cdef public AttentionManager manager
    cdef public Py_ssize_t start
    cdef public list ids
    cdef public object hashes


cdef class Publisher:
    cdef public object _groups
    cdef public list _managers
    cdef public BlockPool _pool
    cdef public Py_ssize_t _hash_block_size
    cdef public Py_ssize_t _alignment
    cdef public bint _single
    cdef public bint has_state
    cdef public object _retention
    cdef public object _hasher
    cdef public object _verifier

    @cython.locals(
        known=Py_ssize_t, hashed=Py_ssize_t, runs=list, manager=AttentionManager,
        table=BlockTable, end=Py_ssize_t, run=Run,
    )
    cpdef object publish(self, Held held, Py_ssize_t num_tokens, object step_ends)
    @cython.locals(aligned=Py_ssize_t)
    cpdef Py_ssize_t _findable(self, Py_ssize_t num_tokens, AttentionManager manager) except? -1
    @cython.locals(start=Py_ssize_t, factor=Py_ssize_t, first=Py_ssize_t, place=Py_ssize_t)
    cpdef object _collect(
        self, list runs, Held held, AttentionManager manager, BlockTable table, Py_ssize_t end,
        object exact,
    )
    @cython.locals(factor=Py_ssize_t, offset=Py_ssize_t)
    cpdef object _remember(self, object verifier, Held held, Run run)

# C types for `cache_state.py` where it is compiled; interpreted, nothing of this exists.
from prefixhash.cache.allocation cimport Allocator
from prefixhash.cache.checks cimport HashCheck
from prefixhash.cache.publish cimport Publisher
from prefixhash.cache.search cimport HitSearch
from prefixhash.cache.tables cimport Held
from prefixhash.pool.block_pool cimport BlockPool


cdef class CacheState:
    cdef object __weakref__
    cdef readonly object options
    cdef readonly tuple groups
    cdef readonly BlockPool pool
    cdef readonly Py_ssize_t hash_block_size
    cdef readonly Py_ssize_t alignment
    cdef readonly Py_ssize_t generation
    cdef Py_ssize_t _drop
    cdef tuple _managers
    cdef readonly HitSearch _search
    cdef Publisher _publisher
    cdef object _verifier
    cdef Allocator _allocator
    cdef object _hasher
    cdef HashCheck _hash_check
    cdef bint _report_reuse
    cdef bint _whole_sequence
    cdef Py_ssize_t _longest
    cdef bint _caching
    cdef bint _has_state
    cdef object _no_hit
    cdef Py_ssize_t _num_batches
    cdef dict _held
    cdef set _preempted
    cdef object _counter

    cdef Held _find(self, object request)
    cdef Held _running(self, object request, bint tokens)

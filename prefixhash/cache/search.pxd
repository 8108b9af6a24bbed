# C types for `search.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.managers cimport AttentionManager


cdef class HitSearch:
    cdef public Py_ssize_t hash_block_size
    cdef public Py_ssize_t num_groups
    cdef public list kinds
    cdef public Py_ssize_t num_open
    cdef public object no_hit

    @cython.locals(
        hashed=Py_ssize_t, found=list, length=Py_ssize_t, longest=Py_ssize_t,
        candidate=Py_ssize_t, limit=Py_ssize_t, i=Py_ssize_t,
        manager=AttentionManager, converged=bint,
    )
    cpdef object find(self, object block_hashes, Py_ssize_t max_tokens)
    @cython.locals(manager=AttentionManager, num_tokens=Py_ssize_t, block_ids=list)
    cpdef object _find_alone(self, object block_hashes, Py_ssize_t max_tokens)
    @cython.locals(manager=AttentionManager)
    cpdef dict _by_block_size(self, object block_hashes)
    @cython.locals(manager=AttentionManager, block_ids=list)
    cpdef object _hit(self, list found, Py_ssize_t length, Py_ssize_t longest)


cpdef object coarse(object block_hashes, Py_ssize_t factor)

# C types for `checks.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.managers cimport AttentionManager
from prefixhash.cache.tables cimport Held
from prefixhash.pool.block_pool cimport BlockPool


cpdef object check_request(object request)
@cython.locals(length=Py_ssize_t, first=Py_ssize_t, count=Py_ssize_t, manager=AttentionManager)
cpdef object check_hit(
    object request, object hit, object managers, BlockPool pool, Py_ssize_t hash_block_size
)
cpdef object check_unchanged(Held held, object request, bint tokens=*)
@cython.locals(most=Py_ssize_t, number=Py_ssize_t)
cpdef Py_ssize_t check_commit(Held held, object num_computed, Py_ssize_t longest) except? -1


cdef class HashCheck:
    cdef Py_ssize_t _block_size
    cdef object _hasher
    cdef object _known
    cdef Py_ssize_t _ahead

    @cython.locals(count=Py_ssize_t, hashable=Py_ssize_t)
    cpdef check(self, object request)
    @cython.locals(count=Py_ssize_t, most=Py_ssize_t, least=Py_ssize_t)
    cpdef _check_slowly(self, object request, object own)

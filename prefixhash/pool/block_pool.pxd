# C types for `block_pool.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.pool.pool_state cimport PoolState


cdef class BlockPool(PoolState):
    @cython.locals(
        following="long long[::1]", refs="long long[::1]", hash_of=list, taken=list, evicted=list,
        block=Py_ssize_t,
    )
    cpdef list allocate(self, object n)

    @cython.locals(
        refs="long long[::1]", hash_of=list, revived=list,
        block=Py_ssize_t, count=Py_ssize_t, good=bint,
    )
    cpdef touch(self, object block_ids)

    @cython.locals(
        following="long long[::1]", before="long long[::1]",
        block=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t, left=Py_ssize_t, right=Py_ssize_t,
    )
    cpdef _unlink(self, list blocks)

    @cython.locals(
        refs="long long[::1]", hash_of=list, following="long long[::1]", before="long long[::1]",
        block=Py_ssize_t, count=Py_ssize_t, front=Py_ssize_t, back=Py_ssize_t,
        kept=Py_ssize_t, good=bint,
    )
    cpdef free(self, object block_ids)

    @cython.locals(
        following="long long[::1]", before="long long[::1]", dummy=Py_ssize_t,
        head=Py_ssize_t, tail=Py_ssize_t, first=Py_ssize_t,
    )
    cpdef _splice(self, Py_ssize_t front, Py_ssize_t back)

    @cython.locals(refs="long long[::1]", block=Py_ssize_t, good=bint)
    cpdef cache(self, object block_ids, object block_hashes, object group=*, object about=*)

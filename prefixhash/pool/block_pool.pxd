# C types for `block_pool.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.pool.pool_state cimport PoolState


cdef class BlockPool(PoolState):
    @cython.locals(
        following="int[::1]", refs="int[::1]", carried="unsigned char[::1]", taken=list,
        block=Py_ssize_t, cached=Py_ssize_t, position=Py_ssize_t,
    )
    cpdef list allocate(self, object n)

    @cython.locals(
        refs="int[::1]", carried="unsigned char[::1]", revived=list,
        block=Py_ssize_t, count=Py_ssize_t, good=bint,
    )
    cpdef touch(self, object block_ids)

    @cython.locals(
        following="int[::1]", before="int[::1]",
        block=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t, left=Py_ssize_t, right=Py_ssize_t,
    )
    cpdef _unlink(self, list blocks)

    @cython.locals(
        refs="int[::1]", carried="unsigned char[::1]", following="int[::1]", before="int[::1]",
        block=Py_ssize_t, count=Py_ssize_t, front=Py_ssize_t, back=Py_ssize_t,
        kept=Py_ssize_t, good=bint,
    )
    cpdef free(self, object block_ids)

    @cython.locals(
        following="int[::1]", before="int[::1]", dummy=Py_ssize_t,
        head=Py_ssize_t, tail=Py_ssize_t, first=Py_ssize_t,
    )
    cpdef _splice(self, Py_ssize_t front, Py_ssize_t back)

    @cython.locals(refs="int[::1]", block=Py_ssize_t, good=bint)
    cpdef cache(self, object block_ids, object block_hashes, object group=*, object about=*)

    cpdef _forget(self, list blocks)

    cpdef _store(self, object ids, object block_hashes, object group, object about)

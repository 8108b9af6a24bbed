# C types for `index.py` where it is compiled; interpreted, nothing of this exists.
cimport cython


cdef class HashIndex:
    cdef public list hash_of
    cdef public list group_of
    cdef public dict more
    cdef public dict served
    cdef public dict copies
    cdef public Py_ssize_t num_cached

    cpdef dict of_group(self, object group)

    @cython.locals(
        served=dict, hash_of=list, group_of=list, fresh=list,
        added=Py_ssize_t, position=Py_ssize_t,
    )
    cpdef list add(self, object blocks, object hashes, object group)

    @cython.locals(hash_of=list, group_of=list, copies=dict, served=dict)
    cpdef drop(self, object blocks, list gone)

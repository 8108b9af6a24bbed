# C types for `index.py` where it is compiled; interpreted, nothing of this exists.
cimport cython


cdef class HashIndex:
    cdef readonly unsigned char[::1] carried
    cdef public list hash_of
    cdef public list group_of
    cdef public dict more
    cdef public dict served
    cdef public dict copies
    cdef public Py_ssize_t num_cached

    cpdef dict of_group(self, object group)

    cpdef HashIndex generic(self)

    cpdef bint all_digests(self, object hashes) except -1

    cpdef object find(self, object block_hash, object group)

    @cython.locals(found=list, served=dict)
    cpdef list find_run(self, object hashes, object group, object limit)

    cpdef bint carries(self, object block, object block_hash, object group) except -1

    @cython.locals(hash_of=list, group_of=list)
    cpdef bint first_hashes_are(self, object blocks, object hashes, object group) except -1

    cpdef object first_hash(self, object block)

    cpdef list hashes(self, object block)

    @cython.locals(
        served=dict, hash_of=list, group_of=list, carried="unsigned char[::1]",
        added=Py_ssize_t, position=Py_ssize_t,
    )
    cpdef add(self, object blocks, object hashes, object group, list fresh)

    @cython.locals(
        hash_of=list, group_of=list, carried="unsigned char[::1]", copies=dict, served=dict,
        dropped=Py_ssize_t,
    )
    cpdef drop(self, object blocks, list gone)

    cpdef clear(self)

    cpdef object num_keys(self)

# C types for `_stack.py` where it is compiled; interpreted, nothing of this exists.
cimport cython


cdef class Timeline:
    cdef public Py_ssize_t size
    cdef public Py_ssize_t used
    cdef public Py_ssize_t total
    cdef public list counts
    cdef public list tree
    cdef public list born

    cpdef Py_ssize_t append(self, Py_ssize_t count, object now) except -1

    @cython.locals(tree=list, size=Py_ssize_t, k=Py_ssize_t)
    cpdef add(self, Py_ssize_t slot, Py_ssize_t count)

    @cython.locals(tree=list, total=Py_ssize_t, k=Py_ssize_t)
    cpdef Py_ssize_t older(self, Py_ssize_t slot) except -1

    @cython.locals(counts=list, live=list, renumbered=list, slot=Py_ssize_t)
    cpdef list make_room(self)

    @cython.locals(tree=list, size=Py_ssize_t, k=Py_ssize_t, parent=Py_ssize_t)
    cpdef _rebuild(self)


cdef class Gains:
    cdef public list differences

    @cython.locals(missing=Py_ssize_t)
    cpdef cover(self, Py_ssize_t capacity)


cdef class RunStack:
    cdef public Gains gains
    cdef public bint head_first
    cdef public list last
    cdef public Timeline timeline

    @cython.locals(
        last=list, timeline=Timeline, n=Py_ssize_t, start=Py_ssize_t, run=Py_ssize_t,
        end=Py_ssize_t, length=Py_ssize_t, above=Py_ssize_t,
    )
    cpdef Py_ssize_t access(
        self, object ids, Py_ssize_t num_blocks, Py_ssize_t limit, object each, object final,
        object now,
    ) except -1

    @cython.locals(last=list, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cpdef Py_ssize_t _segment_end(self, object ids, Py_ssize_t start, Py_ssize_t run) except -1

    @cython.locals(counted=Py_ssize_t, left=Py_ssize_t, differences=list)
    cpdef _record(
        self, Py_ssize_t above, Py_ssize_t run, Py_ssize_t start, Py_ssize_t end, Py_ssize_t n,
        Py_ssize_t limit, object each, object final,
    )

    @cython.locals(renumbered=list, last=list)
    cpdef _refresh(self, object ids, object now)


cdef class BlockStack:
    cdef public Gains gains
    cdef public bint head_first
    cdef public list last
    cdef public Timeline timeline

    cpdef Py_ssize_t access(
        self, object ids, Py_ssize_t num_blocks, Py_ssize_t limit, object each, object final,
        object now,
    ) except -1

    @cython.locals(
        last=list, timeline=Timeline, differences=list, need=Py_ssize_t, hits=Py_ssize_t,
        slot=Py_ssize_t, depth=Py_ssize_t, block=Py_ssize_t,
    )
    cpdef Py_ssize_t access_each(
        self, object ids, Py_ssize_t num_blocks, object weights, object now
    ) except -1

    @cython.locals(missing=Py_ssize_t)
    cpdef _reserve(self, Py_ssize_t num_blocks)

    @cython.locals(last=list, renumbered=list)
    cpdef _push(self, Py_ssize_t block, object now)

# C types for `tables.py` where it is compiled; interpreted, nothing of this exists.
cimport cython


cdef class BlockTable:
    cdef public list blocks
    cdef public Py_ssize_t num_cached
    cdef public Py_ssize_t retired
    cdef public bint started


cdef class Held:
    cdef public object request
    cdef public Py_ssize_t generation
    cdef public list tables
    cdef public Py_ssize_t num_computed
    cdef public Py_ssize_t num_scheduled
    cdef public Py_ssize_t num_open
    cdef public Py_ssize_t step
    cdef public Py_ssize_t step_given
    cdef public list older_steps
    cdef public set step_ends
    cdef public Py_ssize_t num_slots
    cdef public Py_ssize_t next_release
    cdef public Py_ssize_t next_publish
    cdef public Py_ssize_t junction
    cdef public Py_ssize_t num_known
    cdef public Py_ssize_t num_hashes
    cdef public object last_hash
    cdef public Py_ssize_t lookahead
    cdef public Py_ssize_t num_given
    cdef public bint tells_cuts
    cdef public Py_ssize_t num_truncations
    cdef public Py_ssize_t lowest_cut
    cdef public Py_ssize_t batch
    cdef public list records

    cpdef bint is_quiet(self, Py_ssize_t num_tokens) except -1
    @cython.locals(num_truncations=Py_ssize_t)
    cpdef bint is_unchanged(self) except -1
    @cython.locals(given=Py_ssize_t)
    cpdef open_step(self, Py_ssize_t num_tokens, Py_ssize_t end)
    cpdef bint is_whole_step(self, Py_ssize_t num_computed) except -1
    cpdef close_step(self, Py_ssize_t num_computed)
    @cython.locals(still_open=list)
    cpdef close_steps(self, Py_ssize_t num_computed, Py_ssize_t closed, bint rejected)
    @cython.locals(known=Py_ssize_t)
    cpdef _compute(self, Py_ssize_t num_computed)
    cpdef list _open_steps(self)
    cpdef _note_cuts(self, Py_ssize_t num_truncations)
    @cython.locals(closed=Py_ssize_t, position=Py_ssize_t, step=Py_ssize_t, ends=list)
    cpdef tuple steps_until(self, Py_ssize_t num_computed)
    @cython.locals(count=Py_ssize_t)
    cpdef bint _keeps_hashes(self) except -1
    @cython.locals(count=Py_ssize_t)
    cpdef seal(self, Py_ssize_t num_computed, Py_ssize_t hash_block_size)

# C types for `allocation.py` where it is compiled; interpreted, nothing of this exists.
cimport cython

from prefixhash.cache.managers cimport AttentionManager
from prefixhash.cache.tables cimport BlockTable, Held
from prefixhash.pool.block_pool cimport BlockPool


@cython.locals(block=Py_ssize_t)
cpdef object real_blocks(object ids)


cdef class Allocator:
    cdef public tuple _managers
    cdef public BlockPool _pool
    cdef public Py_ssize_t _longest
    cdef public Py_ssize_t _watermark_blocks
    cdef public bint _recycles
    cdef public tuple _nothing_new

    cpdef bint fits_wholly(
        self, object request, object hit, Py_ssize_t new, Py_ssize_t encoder, bint others
    ) except -1
    @cython.locals(manager=AttentionManager, size=Py_ssize_t, count=Py_ssize_t)
    cpdef Py_ssize_t _states_beside(
        self, object hit, Py_ssize_t step_end, Py_ssize_t num_tokens
    ) except? -1
    @cython.locals(main=Py_ssize_t, tokens=Py_ssize_t, needs=list, tables=list)
    cpdef object admit(
        self, Held held, object hit, Py_ssize_t new, Py_ssize_t lookahead, Py_ssize_t encoder,
        bint others,
    )
    @cython.locals(manager=AttentionManager, needs=list, need=Py_ssize_t)
    cpdef list _admission_needs(
        self, object hit, Py_ssize_t tokens, Py_ssize_t main, Py_ssize_t encoder, bint capped
    )
    @cython.locals(free=Py_ssize_t)
    cpdef Py_ssize_t _free_for_admission(self, object hit, bint others) except? -1
    @cython.locals(
        main=Py_ssize_t, tokens=Py_ssize_t, needs=list, total=Py_ssize_t, need=Py_ssize_t,
        manager=AttentionManager, table=BlockTable, places=list, free=Py_ssize_t,
    )
    cpdef object extend(self, Held held, Py_ssize_t new, Py_ssize_t lookahead, Py_ssize_t encoder)
    @cython.locals(
        total=Py_ssize_t, taken=list, new=list, start=Py_ssize_t, need=Py_ssize_t,
        num_slots=Py_ssize_t, next_release=Py_ssize_t, manager=AttentionManager, table=BlockTable,
        ids=list,
    )
    cpdef object _grow(self, Held held, list needs, Py_ssize_t new_tokens, Py_ssize_t main)
    @cython.locals(manager=AttentionManager, table=BlockTable, found=list, places=list)
    cpdef list _out_of_reach(self, Held held)
    @cython.locals(table=BlockTable, places=list, count=Py_ssize_t)
    cpdef Py_ssize_t _freed_by(self, list out_of_reach) except? -1
    @cython.locals(table=BlockTable, places=list, place=Py_ssize_t)
    cpdef object _give_back(self, list out_of_reach)
    cpdef object trim(self, Held held)
    @cython.locals(table=BlockTable)
    cpdef object release(self, Held held)

# C types for `request.py` where it is compiled; interpreted, nothing of this exists.
cimport cython


cdef class Request:
    # Embedders hang their own attributes on requests.
    cdef dict __dict__
    cdef object __weakref__
    cdef object _request_id
    cdef object _lora_request
    cdef object _cache_salt
    cdef object _ids
    cdef object _all_token_ids
    cdef Py_ssize_t _num_prompt_tokens
    cdef object _prompt_embeds
    cdef object _prompt_is_token_ids
    cdef tuple _mm_features
    cdef Py_ssize_t _mm_end
    cdef bint _is_plain
    cdef public dict _prompt_embeds_per_block_hashes
    cdef list _block_hashes
    cdef object _block_hasher
    cdef Py_ssize_t _next_hash_at
    cdef Py_ssize_t _num_truncations
    cdef object _cuts

    @cython.locals(length=Py_ssize_t)
    cpdef append_token_ids(self, object ids)
    cdef _plan_hashing(self)
    @cython.locals(shorter=Request)
    cdef list _hashes_after(self, Py_ssize_t cut)
    cdef _truncate_prompt(self, Py_ssize_t cut)
    cdef _check_media_cut(self, Py_ssize_t cut)

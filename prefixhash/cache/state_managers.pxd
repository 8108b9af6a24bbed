# C types for `state_managers.py` where it is compiled; interpreted, nothing of this exists.
from prefixhash.cache.managers cimport AttentionManager


cdef class MambaManager(AttentionManager):
    pass


cdef class CrossAttentionManager(AttentionManager):
    pass


cdef class EncoderOnlyManager(AttentionManager):
    pass

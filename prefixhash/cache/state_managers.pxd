# C types for `state_managers.py` where it is compiled; interpreted, nothing of this exists.
from prefixhash.cache.managers cimport AttentionManager


cdef class MambaManager(AttentionManager):
    pass


cdef class UncachedManager(AttentionManager):
    pass


cdef class CrossAttentionManager(UncachedManager):
    pass


cdef class EncoderOnlyManager(UncachedManager):
    pass

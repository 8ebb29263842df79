# C types of the functions of varints.py that are hot, for compiled wheels: see hatch_build.py.

cimport cython

cdef long long _TWO_BYTES_END
cdef tuple _BYTE

cpdef bytes encode_varint(long long number)

@cython.locals(number=cython.longlong, byte=cython.longlong, shift=cython.longlong)
cpdef (long long, Py_ssize_t) read_varint(bytes data, Py_ssize_t at) except *

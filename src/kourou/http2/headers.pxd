# C types of the functions of headers.py that are hot, for compiled wheels: see hatch_build.py.

cimport cython

cdef long long _INVALID, _METHOD, _SCHEME, _PATH, _AUTHORITY, _PSEUDO_LAST, _LENGTH, _TIMEOUT
cdef long long _ENCODING, _CONTENT_TYPE, _TE, _NUL, _LF, _CR, _FIELD_BYTES, _LENGTH_DIGITS_MAX
cdef long long _INTEGER_7, _TEXT_BYTES_MAX, _NAMES_MAX, _TEXTS_MAX, _STATIC_COUNT
cdef dict _ROLES, _roles, _texts
cdef tuple _STATIC
cdef list _FIRST_ROW

cdef class HeaderDecoder:
    cdef readonly list _entries  # the tests read it
    cdef long long _size, _size_max

    cpdef list decode(self, bytes block)

    @cython.locals(
        fields=list, entries=list, at=Py_ssize_t, end=Py_ssize_t, first=cython.uchar,
        index=cython.longlong, mask=cython.longlong, size=cython.longlong, name=bytes, value=bytes,
        field=tuple,
    )
    cdef list _decode(self, bytes block)

    @cython.locals(entries=list)
    cdef _add(self, tuple field)

    @cython.locals(entries=list, removed=Py_ssize_t)
    cdef _evict(self)

    cdef _resize(self, long long size)

@cython.locals(role=cython.longlong)
cdef tuple _field(bytes name, bytes value)

@cython.locals(role=cython.longlong)
cdef long long _learn_role(bytes name) except -1

@cython.locals(byte=cython.longlong, shift=cython.longlong)
cdef (long long, Py_ssize_t) _integer(bytes block, Py_ssize_t at, long long value) except *

@cython.locals(first=cython.uchar, size=cython.longlong, end=Py_ssize_t, text=bytes)
cdef tuple _text(bytes block, Py_ssize_t at)

@cython.locals(row=list, step=tuple, parts=list, part=bytes, text=bytes, byte=cython.uchar,
               at=Py_ssize_t)
cdef bytes _decode_text(bytes code)

@cython.locals(list_bytes=cython.longlong, has_plain=cython.bint, role=cython.longlong,
               size=cython.longlong, value=bytes)
cpdef request_head(list fields)

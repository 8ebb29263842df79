# C types of the functions of plain_requests.py that are hot, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.proxy.varints cimport read_varint

cdef long long _MESSAGE, _TOPIC, _USER_PROPERTY, _SYSTEM, _BODY, _KEY, _MESSAGE_ID, _DIGEST
cdef long long _BORN_TIME, _WIRE_TYPE, _LENGTH, _SECONDS_BYTES, _TIME_BYTES_MAX
cdef long long _DIGEST_TYPE, _DIGEST_CHECKSUM
cdef bytes _MESSAGE_GROUP, _NANOS

@cython.locals(size=cython.longlong, end=Py_ssize_t, head_at=Py_ssize_t, at=Py_ssize_t,
               system_end=Py_ssize_t, body_at=Py_ssize_t, system=tuple)
cpdef read_plain(bytes data)

@cython.locals(rest_at=Py_ssize_t, size=cython.longlong, value_at=Py_ssize_t, value_end=Py_ssize_t,
               tag=cython.uchar, newest=cython.uchar, rest=bytes, keys=bytes, message_id=bytes,
               value=bytes, born_at_ms=cython.longlong)
cdef tuple _read_system(bytes data, Py_ssize_t at, Py_ssize_t end)

cdef bint _is_plain_digest(bytes value) except -1

@cython.locals(seconds_end=Py_ssize_t, nanos=cython.longlong, seconds_ms=cython.longlong,
               at=Py_ssize_t)
cdef long long _milliseconds(bytes value) except? -2

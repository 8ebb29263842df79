# C types of the functions of plain_acks.py that are hot, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.proxy.varints cimport encode_varint, read_varint

cdef long long _GROUP, _TOPIC, _ENTRY, _MESSAGE_ID, _HANDLE

@cython.locals(size=cython.longlong, at=Py_ssize_t, end=Py_ssize_t, entry_at=Py_ssize_t,
               head=bytes, entries=list)
cpdef read_ack(bytes data)

@cython.locals(size=cython.longlong, id_at=Py_ssize_t, id_end=Py_ssize_t, handle_at=Py_ssize_t,
               message_id=bytes)
cdef _read_entry(bytes data, Py_ssize_t at, Py_ssize_t end)

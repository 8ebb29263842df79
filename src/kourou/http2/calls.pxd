# C types of calls, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.http2.outgoing cimport Outgoing
from kourou.http2.streams cimport Stream

cdef class Call(Stream):
    cdef public object connection, calls, head, method, deadline_s, timeout_s
    cdef public object on_cancel, on_message, on_end, on_writable
    cdef public bint is_counted, is_forgotten
    cdef object _metadata, _reader
    cdef bytes _request
    cdef bint _has_head, _is_reserved, _is_waiting

    @cython.locals(outgoing=Outgoing, prefix=bytes)
    cpdef reply(self, bytes message)

    cpdef begin(self, object head, object method)

    cdef _check_memory(self, object head)

    @cython.locals(size=Py_ssize_t)
    cpdef receive(self, bytes data)

    cdef _read(self, bytes data)

    cdef _on_message(self, bytes message)

    @cython.locals(request=bytes)
    cdef _after_data(self)

    cdef _open_window(self)

# C types of the open calls of a connection, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.http2.calls cimport Call
from kourou.http2.connection cimport Http2Connection
from kourou.http2.deadlines cimport Deadlines

cdef class SharedCalls:
    cdef readonly dict methods
    cdef public long long open_bytes, open_bytes_max
    cdef readonly Deadlines deadlines
    cdef object make_room

cdef class OpenCalls:
    cdef public Http2Connection http2
    cdef readonly long long open_bytes, begun
    cdef SharedCalls _shared
    cdef object _connection

    cpdef bint has_room(self) except -1

    cpdef Call create_stream(
        self, long long stream_id, long long send_window, long long receive_window)

    @cython.locals(shared=SharedCalls, size=cython.longlong)
    cpdef on_request(self, Call stream, object head)

    cpdef on_data(self, Call stream, bytes data)

    cpdef on_reset(self, Call stream)

    cpdef on_writable(self, Call stream)

    cpdef on_answered(self, Call call)

    cpdef refuse(self, Call call, object error)

    cpdef end_by_deadline(self, Call call)

    @cython.locals(shared=SharedCalls, size=cython.longlong)
    cdef _forget(self, Call call)

    cdef _failed(self, Call call, object error)

    cdef _cancel(self, Call call)

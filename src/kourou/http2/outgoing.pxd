# C types of what is sent on streams, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.http2.streams cimport Stream

cdef long long _DATA_AND_FLAGS, _ID_BYTES

cdef class Outgoing:
    cdef object _on_ended, _on_writable
    cdef list _queue
    cdef public dict ready
    cdef public long long window, stream_window, frame_bytes_max, unsent_bytes, pending_bytes
    cdef public bint is_paused

    @cython.locals(queue=list)
    cpdef bytes take(self)

    cpdef put(self, bytes frame)

    @cython.locals(data=bytes)
    cpdef put_headers(self, Stream stream, object frame, bint ends=*)

    @cython.locals(size=cython.longlong)
    cpdef put_data(self, Stream stream, bytes data)

    cpdef bint takes_at_once(self, Stream stream, long long size) except -1

    @cython.locals(size=cython.longlong, number=bytes, data_start=bytes, frame=bytes)
    cpdef put_reply(self, Stream stream, object head, bytes prefix, bytes data, object trailers)

    cpdef forget(self, Stream stream)

    cpdef open_window(self, long long size)

    cpdef open_stream_window(self, Stream stream, long long size)

    @cython.locals(stream=Stream)
    cpdef resume(self)

    @cython.locals(left=cython.longlong, room=cython.longlong, size=cython.longlong)
    cdef _send_turn(self, Stream stream)

    cdef _finish(self, Stream stream)

    cdef bint _has_room(self, Stream stream, long long size) except -1

    cdef _put_frame(self, Stream stream, object data, long long size)

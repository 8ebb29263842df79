# C types of a connection and of the frames that it receives, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.http2.headers cimport HeaderDecoder
from kourou.http2.outgoing cimport Outgoing
from kourou.http2.streams cimport Stream

cdef long long DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, HEADERS, HEAD_BYTES, ID_MASK
cdef long long PADDED, PRIORITY_FLAG
cdef long long _PRIORITY_BYTES, _RESET_REMEMBERED_MAX, _REASON_BYTES_MAX, _STREAMS_PER_CHARGE

cdef class Http2Connection:
    cdef object _limits, _handler, _credit, _charge
    cdef long long _streams_max, _stream_window
    cdef readonly Outgoing outgoing
    cdef readonly dict streams
    cdef readonly bint is_closed, is_draining, has_more, is_held_new
    cdef readonly str close_reason
    cdef long long _newest_id, _newest_served_id, _opened, _work_left, _uncharged
    cdef bytes _held
    cdef bint _is_preface_due, _is_settings_due
    cdef HeaderDecoder _decoder
    cdef tuple _block
    cdef long long _block_frames, _window_low
    cdef public long long _window  # the tests set it
    cdef dict _reset_by_us, _handlers

    @cython.locals(at=Py_ssize_t, charged=cython.longlong, is_left=cython.bint, block=tuple)
    cpdef receive(self, bytes data, object work_max=*)

    cpdef spend(self, long long work, long long charged)

    cdef Py_ssize_t _receive_preface(self, bytes data) except -1

    @cython.locals(
        end=Py_ssize_t, high=cython.longlong, low=cython.longlong, size=Py_ssize_t,
        kind=cython.longlong, flags=cython.longlong, begin=Py_ssize_t, stop=Py_ssize_t,
        stream_id=cython.longlong,
    )
    cdef Py_ssize_t _receive_frames(self, bytes data, Py_ssize_t at) except -1

    cdef _check_order(self, long long kind, long long flags, long long stream_id)

    cpdef raise_window(self, Stream stream, long long size)

    cpdef _on_local_end(self, Stream stream)

    cdef _put_reset(self, long long stream_id, object code)

    cdef _close_stream(self, Stream stream)

    @cython.locals(size=cython.longlong, stream=Stream, is_end=cython.bint)
    cdef _on_data(self, long long stream_id, long long flags, bytes payload)

    cdef _open_window(self)

    cdef _on_headers(self, long long stream_id, long long flags, bytes payload)

    @cython.locals(is_end=cython.bint, stream=Stream, fields=list)
    cdef _on_block(self, long long stream_id, long long flags, bytes block)

# C types of streams, for compiled wheels: see hatch_build.py.

cdef class Stream:
    cdef public long long id, send_window, receive_window, unsent_bytes
    cdef public bint is_remote_ended, is_local_ended, is_closed
    cdef public object unsent, last_frame, length_left

# C types of deadlines, for compiled wheels: see hatch_build.py.

cimport cython

cdef class Deadlines:
    cdef object _loop, _on_passed
    cdef readonly dict _by_tick  # the tests read these two
    cdef list _ticks
    cdef readonly object _timer

    @cython.locals(tick=cython.longlong, items=dict)
    cpdef add(self, object item, double deadline_s)

    @cython.locals(items=dict)
    cpdef discard(self, object item, double deadline_s)

    cpdef close(self)

    cdef _set_timer(self)

    cpdef _expire(self)

cdef long long _tick(double deadline_s)

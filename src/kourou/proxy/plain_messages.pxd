# C types of the functions of plain_messages.py that are hot, for compiled wheels: see hatch_build.py.

cimport cython
from kourou.proxy.varints cimport encode_varint

cdef bytes _DIGEST, _ID_START, PAIR_END
cdef tuple _NANOS, _UNUSED_STARTS, _NO_PROPERTY
cdef dict _NORMAL
cdef int _NOTHING, _USER_PROPERTY, _TAG, _KEYS, _MESSAGE_ID, _BORN_HOST, _SPECIAL
cdef int _ATTEMPTS_PLAIN_MAX, _PROPERTIES_MAX, _PROPERTY_BYTES_MAX

@cython.locals(plain=bytes, encoded=bytes)
cpdef bytes encode_delivery(
    message, str receipt_handle, language, now_ms, body_bytes_max=*)

@cython.locals(attempt=cython.longlong, born_at_ms=cython.longlong, store_at_ms=cython.longlong,
               kind=int, queue_id=cython.longlong, queue_offset=cython.longlong, text=bytes,
               entry=bytes, field=bytes, parts=list, tag=bytes, keys=bytes, message_id=bytes,
               named_host=bytes, system=bytes, start=bytes, body=bytes, born_host=bytes,
               store_host=bytes, known=tuple)
cdef bytes _encode_plain(message, str receipt_handle, language, body_bytes_max)

@cython.locals(text=bytes)
cdef tuple _text_and_hosts(message)

cdef tuple _read_property(bytes entry)

@cython.locals(seconds=cython.longlong, rest_ms=cython.longlong, value=bytes)
cdef bytes _time(bytes tag, long long ms)

cdef bytes _text(bytes tag, str text)

cdef bytes _bytes(bytes tag, bytes value)

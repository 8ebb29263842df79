# C types of the function of metadata.py that is hot, for compiled wheels: see hatch_build.py.

cimport cython

cdef bytes _CLIENT_ID, _LANGUAGE
cdef dict _LANGUAGES

@cython.locals(client_id=bytes, language=bytes, fields=list, name=bytes, value=bytes)
cpdef tuple client_of(object call)

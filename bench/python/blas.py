"""The OpenBLAS that PyTorch has loaded, if it has."""

import ctypes


def function(name):
    """A function of OpenBLAS, or None."""
    with open('/proc/self/maps') as maps:
        paths = {line.split()[-1] for line in maps if 'blas' in line}
    for path in sorted(paths):
        try:
            return getattr(ctypes.CDLL(path), name)
        except (AttributeError, OSError):
            continue
    return None


def core():
    """The kernels in use, '' without OpenBLAS."""
    f = function('openblas_get_corename')
    if f is None:
        return ''
    f.restype = ctypes.c_char_p
    return f().decode()


def set_threads(n):
    f = function('openblas_set_num_threads')
    if f is not None:
        f(n)

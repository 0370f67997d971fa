"""The BLAS that PyTorch has loaded."""

import ctypes


def core():
    """The BLAS kernels in use, '' when the BLAS does not tell."""
    with open('/proc/self/maps') as maps:
        paths = {line.split()[-1] for line in maps if 'blas' in line}
    for path in sorted(paths):
        try:
            f = ctypes.CDLL(path).openblas_get_corename
        except (AttributeError, OSError):
            continue
        f.restype = ctypes.c_char_p
        return f().decode()
    return ''

package shim

// #include "native/shim.h"
import "C"

// ClosedAtStart reports whether a standard stream, 0, 1 or 2, was closed when the process began. Go has
// opened /dev/null in its place since.
func ClosedAtStart(stream int) bool { return C.ps_closed_at_start(C.int32_t(stream)) != 0 }

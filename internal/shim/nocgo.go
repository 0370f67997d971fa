//go:build !cgo

package shim

// Without cgo, the compiler's error has this text.
const _ int = "Penstock needs cgo: install a C++ compiler and libtorch (Debian: g++ libtorch-dev), and set CGO_ENABLED=1"

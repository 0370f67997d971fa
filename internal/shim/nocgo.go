//go:build !cgo

package shim

// Without cgo, the compiler's error has this text.
const _ int = "Penstock needs cgo: install g++ and libtorch (Debian: libtorch-dev), set CGO_ENABLED=1"

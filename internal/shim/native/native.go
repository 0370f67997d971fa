// Package native is the C++ of package shim, alone, so that a change in Go compiles none of it again:
// cgo compiles all C++ of a package whenever a file of the package changes. This file is its only Go
// and has nothing but flags.
//
// Two units, autograd.cpp and runtime.cpp, include the files of the folders with their names, so that
// libtorch's headers are parsed twice, on two cores, and not once a file.
//
// The default flags link Debian's libtorch. Another one is chosen with CGO_CXXFLAGS and CGO_LDFLAGS,
// which come before these.
package native

/*
#cgo CXXFLAGS: -std=c++20 -O2 -g0 -Wall -Wfatal-errors
#cgo LDFLAGS: -ltorch_cpu -lc10 -ldl -Wl,--unresolved-symbols=report-all
*/
import "C"

import "embed"

// The variable makes the go command compile again when a header or a file of a folder changes, here and
// in package shim, which includes the headers. No binary holds the texts, as nothing uses them.
//
//go:embed *.h *.hpp autograd gloo runtime
var _ embed.FS

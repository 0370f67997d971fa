//go:build !cgo

package timers

//go:build !amd64

package plan

func vector(out, a, b []float32, c float32) bool { return false }

func vectorOne(out, a []float32, c float32) bool { return false }

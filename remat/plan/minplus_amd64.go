package plan

// instructions are the vector instructions that the loops use.
type instructions int

const (
	plain instructions = iota
	avx2
	avx512
)

// available is the best that the processor has and the operating system saves.
var available = detect()

func detect() instructions {
	const (
		osxsave, avx       = 1 << 27, 1 << 28
		avx2Bit, avx512f   = 1 << 5, 1 << 16
		ymmState, zmmState = 0x06, 0xe6 // of XCR0: SSE and AVX; with opmask and both halves of ZMM
	)
	highest, _, _ := cpuid(0, 0)
	if highest < 7 {
		return plain
	}
	_, _, features := cpuid(1, 0)
	if features&(osxsave|avx) != osxsave|avx {
		return plain
	}
	_, extended, _ := cpuid(7, 0)
	state := xgetbv()
	switch {
	case extended&avx512f != 0 && state&zmmState == zmmState:
		return avx512
	case extended&avx2Bit != 0 && state&ymmState == ymmState:
		return avx2
	}
	return plain
}

func vector(out, a, b []float32, c float32) bool {
	if len(out) == 0 {
		return true
	}
	switch available {
	case avx512:
		minPlusTwo512(&out[0], &a[0], &b[0], len(out), c)
	case avx2:
		whole := len(out) &^ 7
		minPlusTwo256(&out[0], &a[0], &b[0], whole, c)
		for k := whole; k < len(out); k++ {
			out[k] = min(out[k], a[k]+b[k]+c)
		}
	default:
		return false
	}
	return true
}

func vectorOne(out, a []float32, c float32) bool {
	if len(out) == 0 {
		return true
	}
	switch available {
	case avx512:
		minPlusOne512(&out[0], &a[0], len(out), c)
	case avx2:
		whole := len(out) &^ 7
		minPlusOne256(&out[0], &a[0], whole, c)
		for k := whole; k < len(out); k++ {
			out[k] = min(out[k], a[k]+c)
		}
	default:
		return false
	}
	return true
}

// cpuid is the instruction, of which EDX is not wanted.
func cpuid(leaf, sub uint32) (eax, ebx, ecx uint32)

// xgetbv is the low half of XCR0.
func xgetbv() uint32

//go:noescape
func minPlusTwo512(out, a, b *float32, n int, c float32)

//go:noescape
func minPlusOne512(out, a *float32, n int, c float32)

// n is a multiple of 8.
//
//go:noescape
func minPlusTwo256(out, a, b *float32, n int, c float32)

//go:noescape
func minPlusOne256(out, a *float32, n int, c float32)

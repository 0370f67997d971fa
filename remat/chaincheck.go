package remat

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxBytes and MaxTime are bounds of a chain. Under them no sum that a plan needs, however often
// its layers run, leaves int64 or loses the meaning of a float64.
const (
	MaxBytes = 1 << 60 // of all sizes together
	MaxTime  = 1e18    // microseconds of all times together: 30,000 years
	maxCount = 1 << 30 // of rows, of threads, and of devices
)

// ChainError says what is wrong with a chain, and where.
type ChainError struct {
	Path   string // as in a file of the chain, such as layers[3].output_bytes
	Reason string // what it is, and what is wanted
}

func (e *ChainError) Error() string { return fmt.Sprintf("remat: chain, %s: %s", e.Path, e.Reason) }

// Check returns a [*ChainError] unless the chain makes sense. It has layers, whose names can be
// shown. Sizes and times are finite and not negative, and all together at most 2^60 bytes and 1e18
// microseconds. Saved includes Output. Carries lie within the chain and within the blocks that they
// are parts of. Deferred is known of all layers, or of none.
func (c Chain) Check() error {
	if len(c.Layers) == 0 {
		return &ChainError{"layers", "there are none; want at least one"}
	}
	if n := len(c.Deferred); n != 0 && n != len(c.Layers) {
		return &ChainError{"layers", fmt.Sprintf("deferred is known of %d, of %d; want all or none", n, len(c.Layers))}
	}
	s := chainSums{}
	s.bytes("input_bytes", c.Input)
	s.bytes("input_gradient_bytes", c.InputGradient)
	for i, l := range c.Layers {
		s.layer(fmt.Sprintf("layers[%d]", i), l)
		if s.err == nil && l.BackwardEarly > 0 && l.BackwardEarly > l.Saved+l.WeightGradient+l.BackwardTmp+c.madeGradient(i)+c.gradientAt(i+1) {
			s.fail(fmt.Sprintf("layers[%d].backward_early_bytes", i), "%d bytes, more than the layer saves, is given and makes", l.BackwardEarly)
		}
	}
	s.time("loss.backward_us", c.Loss.Backward)
	s.bytes("loss.tmp_bytes", c.Loss.Tmp)
	s.time("spread", c.Spread)
	s.name("model", c.Model)
	for i, n := range []int{c.Rows, c.Threads, c.Devices} {
		if n < 0 || n > maxCount {
			s.fail([]string{"rows", "threads", "devices"}[i], "%d; want 1 to %d", n, maxCount)
		}
	}
	for i, d := range c.Deferred {
		path := fmt.Sprintf("layers[%d].deferred", i)
		s.bytes(path+".bytes", d.Bytes)
		if !(d.Share >= 0 && d.Share <= 1) {
			s.fail(path+".share", "%v; want 0 to 1", d.Share)
		}
		s.time(path+".longer_us", d.Longer)
	}
	if s.err != nil {
		return s.err
	}
	return cmp.Or(c.checkCarries("carries", c.Carries, c.made), c.checkCarries("gradient_carries", c.GradientCarries, c.madeGradient))
}

// gradientAt is the bytes of y(i). The sizes have been checked, so the sum does not overflow.
func (c Chain) gradientAt(i int) int64 {
	bytes := c.madeGradient(i)
	for _, k := range c.GradientCarries {
		if k.From < i && i < k.To {
			bytes += k.Bytes
		}
	}
	return bytes
}

// chainSums adds up a chain up to the first error. Its sums cannot overflow, since it stops at the
// first that is too large.
type chainSums struct {
	size int64
	us   float64
	err  error
}

func (s *chainSums) fail(path, format string, args ...any) {
	if s.err == nil {
		s.err = &ChainError{path, fmt.Sprintf(format, args...)}
	}
}

func (s *chainSums) bytes(path string, n int64) {
	switch {
	case s.err != nil:
	case n < 0:
		s.fail(path, "%d bytes; want 0 or more", n)
	case n > MaxBytes-s.size:
		s.fail(path, "%d bytes, after %d before it; want at most %d in the whole chain", n, s.size, int64(MaxBytes))
	default:
		s.size += n
	}
}

func (s *chainSums) time(path string, t float64) {
	switch {
	case s.err != nil:
	case math.IsNaN(t), math.IsInf(t, 0), t < 0:
		s.fail(path, "%v microseconds; want a finite number, 0 or more", t)
	case t > MaxTime-s.us:
		s.fail(path, "%v microseconds, after %v before it; want at most %v in the whole chain", t, s.us, float64(MaxTime))
	default:
		s.us += t
	}
}

// name checks that a name can be shown on a terminal.
func (s *chainSums) name(path, name string) {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		s.fail(path, "%q; want UTF-8 without control characters, so that it can be shown", name)
	}
}

func (s *chainSums) layer(path string, l Layer) {
	s.name(path+".name", l.Name)
	for _, t := range []struct {
		field string
		us    float64
	}{{"forward", l.Forward}, {"forward_nograd", l.ForwardNoGrad}, {"backward", l.Backward}, {"backward_later", l.BackwardLater}} {
		s.time(path+"."+t.field+"_us", t.us)
	}
	for _, b := range []struct {
		field string
		bytes int64
	}{
		{"output", l.Output}, {"saved", l.Saved}, {"forward_tmp", l.ForwardTmp}, {"forward_nograd_tmp", l.ForwardNoGradTmp},
		{"backward_tmp", l.BackwardTmp}, {"backward_early", l.BackwardEarly}, {"gradient", l.Gradient}, {"weight_gradient", l.WeightGradient},
	} {
		s.bytes(path+"."+b.field+"_bytes", b.bytes)
	}
	if l.Saved < l.Output {
		s.fail(path+".saved_bytes", "%d bytes, less than the output's %d; want them included", l.Saved, l.Output)
	}
}

// made is the bytes that layer i makes for x(i+1); layer -1 makes the input.
func (c Chain) made(i int) int64 {
	if i < 0 {
		return c.Input
	}
	return c.Layers[i].Output
}

// madeGradient is the bytes that are made for y(i).
func (c Chain) madeGradient(i int) int64 {
	if i == 0 {
		return c.InputGradient
	}
	return c.Layers[i-1].Gradient
}

// checkCarries checks one of the lists of carries. Inputs are made by layer From, gradients are
// those of x(To).
func (c Chain) checkCarries(list string, carries []Carry, made func(int) int64) error {
	sums := map[int]int64{}
	for i, k := range carries {
		fail := func(field, format string, args ...any) error {
			return &ChainError{fmt.Sprintf("%s[%d].%s", list, i, field), fmt.Sprintf(format, args...)}
		}
		if k.From < -1 || k.From >= len(c.Layers) {
			return fail("from", "layer %d; want -1, for the input, to %d", k.From, len(c.Layers)-1)
		}
		if k.To <= k.From || k.To > len(c.Layers) {
			return fail("to", "%d, from %d; want %d to %d", k.To, k.From, k.From+1, len(c.Layers))
		}
		maker := k.From
		if list == "gradient_carries" {
			maker = k.To
		}
		if k.Bytes < 0 || k.Bytes > made(maker)-sums[maker] {
			return fail("bytes", "%d bytes; want 0 or more, and with %d of other carries at most the %d that are made there", k.Bytes, sums[maker], made(maker))
		}
		sums[maker] += k.Bytes
	}
	return nil
}

// Fingerprint identifies a chain by 32 hexadecimal digits of a hash of its sizes, its carries in
// any order, and the names of its layers. Whether a plan can run, and its peak, are the same for
// all chains of one fingerprint. Times do not count: they differ from one measurement to the next,
// and a plan for one is good for the other, if maybe not the fastest.
func (c Chain) Fingerprint() string {
	h := sha256.New()
	h.Write([]byte("penstock chain 1\n"))
	put(h, c.Input, c.InputGradient, c.Loss.Tmp, int64(len(c.Layers)))
	for _, l := range c.Layers {
		put(h, int64(len(l.Name)))
		h.Write([]byte(l.Name))
		put(h, l.Output, l.Saved, l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp-l.BackwardEarly, l.Gradient, l.WeightGradient)
	}
	for _, list := range [][]Carry{c.Carries, c.GradientCarries} {
		put(h, int64(len(list)))
		for _, k := range slices.SortedFunc(slices.Values(list), compareCarries) {
			put(h, int64(k.From), int64(k.To), k.Bytes)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:FingerprintDigits/2])
}

// FingerprintDigits is the length of a fingerprint, enough that no two chains of a project have the
// same by chance.
const FingerprintDigits = 32

// IsFingerprint reports whether s has the form of a fingerprint.
func IsFingerprint(s string) bool {
	return len(s) == FingerprintDigits && strings.Trim(s, "0123456789abcdef") == ""
}

func put(h hash.Hash, numbers ...int64) {
	for _, n := range numbers {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
}

func compareCarries(a, b Carry) int {
	return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Bytes, b.Bytes))
}

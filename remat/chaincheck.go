package remat

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a chain. Within them no sum of a plan leaves int64 or becomes meaningless in a float64,
// however often layers run.
const (
	MaxBytes = 1 << 60 // of all sizes together
	maxTime  = 1e18    // microseconds of all times together: 30,000 years
	maxCount = 1 << 30 // of rows, of threads, and of devices
)

// ChainError is a fault of a chain.
type ChainError struct {
	Path   string // as in a file of the chain, such as layers[3].output_bytes
	Reason string
}

func (e *ChainError) Error() string { return fmt.Sprintf("remat: chain, %s: %s", e.Path, e.Reason) }

// Check returns a [*ChainError] unless the chain makes sense. It needs layers with names that can be
// shown. Sizes and times are finite and not negative, and at most 2^60 bytes and 1e18 microseconds in
// all. Saved includes Output. Carries lie within the chain and are parts of its blocks. Deferred is
// given for all layers, or for none.
func (c Chain) Check() error {
	n := len(c.Layers)
	if n == 0 {
		return &ChainError{"layers", "there are none; want at least one"}
	}
	if d := len(c.Deferred); d != 0 && d != n {
		return &ChainError{"layers", fmt.Sprintf("deferred is given for %d of %d; want all or none", d, n)}
	}
	s := chainSums{}
	s.bytes("", "input", c.Input, "input_gradient", c.InputGradient, "loss.tmp", c.Loss.Tmp)
	s.times("", "loss.backward_us", c.Loss.Backward, "spread", c.Spread)
	s.name("model", c.Model)
	for i, l := range c.Layers {
		path := fmt.Sprintf("layers[%d].", i)
		s.name(path+"name", l.Name)
		s.times(path, "forward_us", l.Forward, "forward_nograd_us", l.ForwardNoGrad,
			"backward_us", l.Backward, "backward_later_us", l.BackwardLater)
		s.bytes(path, "output", l.Output, "saved", l.Saved, "forward_tmp", l.ForwardTmp,
			"forward_nograd_tmp", l.ForwardNoGradTmp, "backward_tmp", l.BackwardTmp,
			"backward_early", l.BackwardEarly, "gradient", l.Gradient, "weight_gradient", l.WeightGradient)
		if l.Saved < l.Output {
			s.fail(path+"saved_bytes", "%d bytes, less than the output's %d; want them included", l.Saved,
				l.Output)
		}
		if s.err == nil && l.BackwardEarly > 0 &&
			l.BackwardEarly > l.Saved+l.WeightGradient+l.BackwardTmp+c.madeGradient(i)+c.gradientAt(i+1) {
			s.fail(path+"backward_early_bytes", "%d bytes, more than all that the backward holds",
				l.BackwardEarly)
		}
		if c.Deferred == nil {
			continue
		}
		d := c.Deferred[i]
		s.bytes(path, "deferred", d.Bytes)
		s.times(path, "deferred.longer_us", d.Longer, "deferred.share", d.Share)
		if d.Share > 1 {
			s.fail(path+"deferred.share", "%v; want 0 to 1", d.Share)
		}
	}
	for i, n := range []int{c.Rows, c.Threads, c.Devices} {
		if n < 0 || n > maxCount {
			s.fail([]string{"rows", "threads", "devices"}[i], "%d; want 1 to %d", n, maxCount)
		}
	}
	if s.err != nil {
		return s.err
	}
	return cmp.Or(c.checkCarries("carries", c.Carries, c.made),
		c.checkCarries("gradient_carries", c.GradientCarries, c.madeGradient))
}

// gradientAt is the bytes of y(i).
func (c Chain) gradientAt(i int) int64 {
	bytes := c.madeGradient(i)
	for _, k := range c.GradientCarries {
		if k.From < i && i < k.To {
			bytes += k.Bytes
		}
	}
	return bytes
}

// chainSums adds up the numbers of a chain, and has the first error. Numbers that are too large are not
// added, so no sum overflows.
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

// bytes adds sizes, each after the name of its field without _bytes.
func (s *chainSums) bytes(path string, fields ...any) {
	for k := 0; k < len(fields); k += 2 {
		n := fields[k+1].(int64)
		if n < 0 || n > MaxBytes-s.size {
			s.fail(fmt.Sprintf("%s%v_bytes", path, fields[k]),
				"%d bytes; want 0 or more, and at most %d in the whole chain", n, int64(MaxBytes))
			continue
		}
		s.size += n
	}
}

// times adds microseconds, each after the name of its field.
func (s *chainSums) times(path string, fields ...any) {
	for k := 0; k < len(fields); k += 2 {
		t := fields[k+1].(float64)
		if !(t >= 0 && t <= maxTime-s.us) { // also for NaN
			s.fail(fmt.Sprint(path, fields[k]),
				"%v; want 0 or more, and at most %v microseconds in the whole chain", t, float64(maxTime))
			continue
		}
		s.us += t
	}
}

// name checks that a name can be shown on a terminal.
func (s *chainSums) name(path, name string) {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		s.fail(path, "%q; want UTF-8 without control characters, so that it can be shown", name)
	}
}

// made is the bytes that layer i makes for x(i+1); layer -1 makes the input.
func (c Chain) made(i int) int64 {
	if i < 0 {
		return c.Input
	}
	return c.Layers[i].Output
}

// madeGradient is the bytes of y(i) without parts of y(i+1).
func (c Chain) madeGradient(i int) int64 {
	if i == 0 {
		return c.InputGradient
	}
	return c.Layers[i-1].Gradient
}

// checkCarries checks a list of carries. made is the bytes that a layer makes: layer From for inputs,
// layer To for gradients.
func (c Chain) checkCarries(list string, carries []Carry, made func(int) int64) error {
	sums := map[int]int64{}
	for i, k := range carries {
		n, path := len(c.Layers), fmt.Sprintf("%s[%d]", list, i)
		if k.From < -1 || k.To <= k.From || k.To > n {
			return &ChainError{path, fmt.Sprintf("from %d to %d; want from -1, for the input, to a later "+
				"layer up to %d", k.From, k.To, n)}
		}
		maker := k.From
		if list == "gradient_carries" {
			maker = k.To
		}
		if k.Bytes < 0 || k.Bytes > made(maker)-sums[maker] {
			return &ChainError{path + ".bytes", fmt.Sprintf("%d bytes; want 0 or more, and with %d of other "+
				"carries at most the %d that are made there", k.Bytes, sums[maker], made(maker))}
		}
		sums[maker] += k.Bytes
	}
	return nil
}

// Fingerprint identifies a chain by 32 hexadecimal digits of a hash of its sizes, its carries in any
// order, and the names of its layers. A plan can run on all chains of one fingerprint, with the same
// peak. Times do not count, as they differ between measurements.
func (c Chain) Fingerprint() string {
	h := sha256.New()
	h.Write([]byte("penstock chain 1\n"))
	put(h, c.Input, c.InputGradient, c.Loss.Tmp, int64(len(c.Layers)))
	for _, l := range c.Layers {
		put(h, int64(len(l.Name)))
		h.Write([]byte(l.Name))
		put(h, l.Output, l.Saved, l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp-l.BackwardEarly, l.Gradient,
			l.WeightGradient)
	}
	for _, list := range [][]Carry{c.Carries, c.GradientCarries} {
		put(h, int64(len(list)))
		for _, k := range slices.SortedFunc(slices.Values(list), func(a, b Carry) int {
			return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Bytes, b.Bytes))
		}) {
			put(h, int64(k.From), int64(k.To), k.Bytes)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func put(h hash.Hash, numbers ...int64) {
	for _, n := range numbers {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
}

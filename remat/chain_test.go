package remat_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/remat"
)

// TestChainCheck: chains that no file can have.
func TestChainCheck(t *testing.T) {
	for _, test := range []struct {
		reason, path string
		spoil        func(*remat.Chain)
	}{
		{"saves less than the output", "layers[0].saved_bytes",
			func(c *remat.Chain) { c.Layers[0].Saved = 15 }},
		{"a carry from beyond the end", "carries[0]", func(c *remat.Chain) { c.Carries[0].From = 5 }},
		{"carries that are too large in sum", "carries[2].bytes",
			func(c *remat.Chain) { c.Carries = append(c.Carries, remat.Carry{From: 0, To: 1, Bytes: 7}) }},
		{"a negative carry", "carries[1].bytes", func(c *remat.Chain) { c.Carries[1].Bytes = -1 }},
		{"NaN", "layers[1].forward_us", func(c *remat.Chain) { c.Layers[1].Forward = math.NaN() }},
		{"name", "layers[0].name", func(c *remat.Chain) { c.Layers[0].Name = "\xff" }},
		{"name of two lines", "layers[0].name", func(c *remat.Chain) { c.Layers[0].Name = "a\nb" }},
		{"negative temporary", "layers[3].forward_nograd_tmp_bytes",
			func(c *remat.Chain) { c.Layers[3].ForwardNoGradTmp = -1 }},
		{"no layers", "layers", func(c *remat.Chain) { c.Layers = nil }},
	} {
		c := sample()
		test.spoil(&c)
		var fault *remat.ChainError
		if err := c.Check(); !errors.As(err, &fault) || fault.Path != test.path {
			t.Errorf("%s: %v; want the path %q", test.reason, err, test.path)
		}
		if _, err := remat.Check(c, nil); err == nil {
			t.Errorf("%s: it is checked", test.reason)
		}
	}
	if err := sample().Check(); err != nil {
		t.Error(err)
	}
}

// TestFingerprint: everything that the peak or the meaning of a plan hangs on counts, times and the
// order of carries do not.
func TestFingerprint(t *testing.T) {
	want := sample().Fingerprint()
	if strings.Trim(want, "0123456789abcdef") != "" || len(want) != 32 {
		t.Errorf("fingerprint %q", want)
	}
	for reason, change := range map[string]func(*remat.Chain){
		"time":             func(c *remat.Chain) { c.Layers[1].Forward, c.Loss.Backward = 99, 99 },
		"order of carries": func(c *remat.Chain) { c.Carries[0], c.Carries[1] = c.Carries[1], c.Carries[0] },
	} {
		c := sample()
		change(&c)
		if c.Fingerprint() != want {
			t.Errorf("%s changes the fingerprint", reason)
		}
	}
	seen := map[string]string{want: "nothing"}
	for reason, change := range map[string]func(*remat.Chain){
		"input":          func(c *remat.Chain) { c.Input++ },
		"names, shifted": func(c *remat.Chain) { c.Layers[0].Name, c.Layers[1].Name = "convr", "elu" },
		"saved":          func(c *remat.Chain) { c.Layers[2].Saved++ },
		"temporary":      func(c *remat.Chain) { c.Layers[2].ForwardTmp++ },
		"weights":        func(c *remat.Chain) { c.Layers[2].WeightGradient++ },
		"carry":          func(c *remat.Chain) { c.Carries[0].To-- },
		"carries swapped": func(c *remat.Chain) {
			c.Carries, c.GradientCarries = c.GradientCarries,
				c.Carries
		},
		"a layer less": func(c *remat.Chain) { c.Layers = c.Layers[:4] },
	} {
		c := sample()
		change(&c)
		got := c.Fingerprint()
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the fingerprint of %s", reason, other)
		}
		seen[got] = reason
	}
}

// A part of a chain is given what passes its borders. Here 5 of the input's 10 bytes go as far as x(3),
// and 3 bytes of the gradient of x(3) as far as y(1).
func TestPart(t *testing.T) {
	layer := func(name string, output, gradient int64) remat.Layer {
		return remat.Layer{Name: name, Output: output, Saved: output, Gradient: gradient}
	}
	c := remat.Chain{
		Input: 10, InputGradient: 2, Loss: remat.Loss{Tmp: 7},
		Layers:          []remat.Layer{layer("a", 20, 21), layer("b", 30, 31), layer("c", 40, 41)},
		Carries:         []remat.Carry{{From: -1, To: 3, Bytes: 5}},
		GradientCarries: []remat.Carry{{From: 0, To: 3, Bytes: 3}},
	}
	if diff := cmp.Diff(c, c.Part(0, 3)); diff != "" {
		t.Error(diff)
	}
	for _, test := range []struct {
		first, last int
		want        remat.Chain
	}{
		{0, 1, remat.Chain{Input: 10, InputGradient: 2, Layers: []remat.Layer{layer("a", 20, 24)},
			Carries: []remat.Carry{{From: -1, To: 1, Bytes: 5}}, GradientCarries: []remat.Carry{{From: 0,
				To: 1, Bytes: 3}}}},
		{1, 2, remat.Chain{Input: 25, InputGradient: 21, Layers: []remat.Layer{layer("b", 30, 34)},
			Carries: []remat.Carry{{From: -1, To: 1, Bytes: 5}}, GradientCarries: []remat.Carry{{From: -1,
				To: 1, Bytes: 3}}}},
		{1, 3, remat.Chain{Input: 25, InputGradient: 21, Loss: remat.Loss{Tmp: 7},
			Layers:  []remat.Layer{layer("b", 30, 31), layer("c", 40, 41)},
			Carries: []remat.Carry{{From: -1, To: 2, Bytes: 5}}, GradientCarries: []remat.Carry{{From: -1,
				To: 2, Bytes: 3}}}},
	} {
		got := c.Part(test.first, test.last)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%d to %d: %s", test.first, test.last, diff)
		}
		if err := got.Check(); err != nil {
			t.Error(err)
		}
	}
}

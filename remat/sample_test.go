package remat_test

import (
	"fmt"
	"os"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/remat"
)

// sample is a chain of five layers in which everything is of another size, with a skip of inputs (layer
// 0 to 3) and one of gradients.
func sample() remat.Chain {
	return remat.Chain{
		Input: 8, InputGradient: 4,
		Layers: []remat.Layer{
			{"conv", 10, 9, 21, 16, 40, 5, 3, 7, 16, 9, 0, 26},
			{"relu", 2, 2, 3, 12, 12, 0, 0, 0, 12, 0, 0, 0},
			{"norm", 4, 3, 7, 14, 33, 2, 1, 4, 14, 2, 0, 0},
			{"add", 1, 1, 1, 6, 6, 0, 0, 0, 6, 0, 0, 0},
			{"fc", 8, 7, 17, 3, 5, 1, 1, 2, 3, 25, 0, 0},
		},
		Loss:            remat.Loss{Backward: 1.5, Tmp: 11},
		Carries:         []remat.Carry{{From: 0, To: 3, Bytes: 10}, {From: -1, To: 1, Bytes: 3}},
		GradientCarries: []remat.Carry{{From: 0, To: 4, Bytes: 6}},
	}
}

// plain is a chain of equal layers: a run takes 1, a backward 2, x and y have 1 byte, X has saved bytes.
func plain(layers int, saved int64) remat.Chain {
	c := remat.Chain{Input: 1, InputGradient: 1}
	for i := range layers {
		c.Layers = append(c.Layers, remat.Layer{Name: fmt.Sprint("l", i), Forward: 1, ForwardNoGrad: 1,
			Backward: 2, Output: 1, Saved: saved, Gradient: 1})
	}
	return c
}

var names = rapid.StringOfN(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S), 0, 4, -1)

// chains generates checked chains of few layers and few bytes, so that everything meets everything.
func chains(most int) *rapid.Generator[remat.Chain] {
	return rapid.Custom(func(t *rapid.T) remat.Chain {
		bytes := rapid.Int64Range(0, 9)
		// In 1024ths, so that sums are exact in any order, and none is lost beside another.
		us := rapid.OneOf(rapid.Just(0.0),
			rapid.Map(rapid.IntRange(0, 50<<10), func(n int) float64 { return float64(n) / 1024 }))
		c := remat.Chain{Input: bytes.Draw(t, "input"), InputGradient: bytes.Draw(t, "input gradient"),
			Loss: remat.Loss{Backward: us.Draw(t, "loss"), Tmp: bytes.Draw(t, "loss tmp")}}
		n := rapid.IntRange(1, most).Draw(t, "layers")
		for range n {
			l := remat.Layer{
				Name: names.Draw(t, "name"), Forward: us.Draw(t, "f"), ForwardNoGrad: us.Draw(t,
					"n"), Backward: us.Draw(t, "b"),
				Output: bytes.Draw(t, "output"), ForwardTmp: bytes.Draw(t,
					"ftmp"), ForwardNoGradTmp: bytes.Draw(t, "ntmp"), BackwardTmp: bytes.Draw(t, "btmp"),
				Gradient: bytes.Draw(t, "gradient"), WeightGradient: bytes.Draw(t, "weights"),
			}
			l.Saved, l.BackwardLater = l.Output+bytes.Draw(t, "saved"), us.Draw(t, "later")
			if rapid.Bool().Draw(t, "early") {
				l.BackwardEarly = rapid.Int64Range(0, l.Saved).Draw(t, "goes early")
			}
			c.Layers = append(c.Layers, l)
		}
		carry := func(list []remat.Carry) []remat.Carry {
			from := rapid.IntRange(-1, n-1).Draw(t, "from")
			return append(list, remat.Carry{From: from, To: rapid.IntRange(from+1, n).Draw(t, "to"),
				Bytes: bytes.Draw(t, "carry")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "carries") {
			longer, both := c, c
			longer.Carries = carry(longer.Carries)
			if longer.Check() == nil {
				c, both = longer, longer
			}
			both.GradientCarries = carry(both.GradientCarries)
			if both.Check() == nil {
				c = both
			}
		}
		if rapid.Bool().Draw(t, "deferred") {
			for range c.Layers {
				c.Deferred = append(c.Deferred, remat.Deferred{Bytes: bytes.Draw(t, "deferred bytes"),
					Share:  float64(rapid.IntRange(0, 4).Draw(t, "share")) / 4,
					Longer: float64(rapid.IntRange(0, 4).Draw(t, "longer")) / 4})
			}
		}
		return c
	})
}

func readTestdata(t testing.TB, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile("testdata/" + name))(t)
}

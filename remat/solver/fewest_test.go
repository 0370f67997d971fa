package solver

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/remat"
)

// smallChain draws a chain of few layers and few bytes.
func smallChain(t *rapid.T) (c remat.Chain) {
	bytes := func(name string) int64 { return rapid.Int64Range(0, 30).Draw(t, name) }
	c = remat.Chain{Input: bytes("input"), InputGradient: bytes("input gradient"), Loss: remat.Loss{Tmp: bytes("loss")}}
	for range rapid.IntRange(1, 6).Draw(t, "layers") {
		l := remat.Layer{Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: bytes("output"), ForwardTmp: bytes("forward"), ForwardNoGradTmp: bytes("no grad"),
			BackwardTmp: bytes("backward"), Gradient: bytes("gradient"), WeightGradient: bytes("weights")}
		l.Saved = l.Output + bytes("saved")
		c.Layers = append(c.Layers, l)
	}
	return c
}

// With the fewest bytes at a backward there is a plan, and with one fewer there is none.
func TestFewestBytesOfABackward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := smallChain(t)
		f := newMicroBatches(Device{Limit: 1, MicroBatches: 1, Stages: []Stage{{First: c, Later: c, Receives: rapid.Bool().Draw(t, "receives")}}})
		s := f.items[0].side
		early, held := rapid.Int64Range(-200, 200).Draw(t, "early"), rapid.Int64Range(-5, s.everything()).Draw(t, "held")
		plan := func(bytes int64) bool {
			return newSpine(s.t, s.b, available{forward: bytes + early, held: held, backward: bytes}).feasible()
		}
		bytes := f.backward(s, early, held)
		if bytes == impossible {
			if plan(1 << 40) {
				t.Fatalf("%d bytes held: there is a plan", held)
			}
			return
		}
		if !plan(bytes) || plan(bytes-1) {
			t.Fatalf("%d bytes, of which %d held: a plan is there: %v, and with one less: %v", bytes, held, plan(bytes), plan(bytes-1))
		}
		if again := f.backward(s, early, held); again != bytes {
			t.Fatalf("%d bytes, and %d when asked again", bytes, again)
		}
	})
}

// Times by what others hold are those by sums: of r and s that of r + s.
func TestTimesByOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var memory scratch
		for range 2 { // the second time in used memory
			sums := make([]stairs, rapid.IntRange(1, 12).Draw(t, "sums"))
			for sum := range sums {
				for s, time := 0, 10.0; s <= sum; s++ {
					if rapid.Bool().Draw(t, "falls") {
						time -= float64(rapid.IntRange(1, 3).Draw(t, "by"))
						sums[sum] = append(sums[sum], stair{int32(s), time})
					}
				}
			}
			at := func(list stairs, s int) float64 {
				time := math.Inf(1)
				for _, one := range list {
					if int(one.s) <= s {
						time = one.time
					}
				}
				return time
			}
			for r, list := range memory.byOthers(sums) {
				least := math.Inf(1)
				var want stairs
				for s := range len(sums) - r {
					if time := at(sums[r+s], s); time < least {
						want, least = append(want, stair{int32(s), time}), time
					}
				}
				if !slices.Equal(list, want) {
					t.Fatalf("r=%d: %v, want %v, of %v", r, list, want, sums)
				}
			}
		}
	})
}

package plan

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/remat"
)

// A unit that no device has memory for is found, and what it needs.
func TestOversized(t *testing.T) {
	c := plainChain([]float64{10, 10, 10}, 1000)
	c.Layers[1].WeightGradient = 50_000
	one, m := Costs{Rows: 4, Chain: c}, devices(2, 0)
	w := Options{Batch: 16, Limit: 199_000, State: 2, Schedules: []string{"1f1b"}}
	u, bytes, found := one.Oversized(m, w)
	if !found || u != 1 || bytes < 4*50_000 {
		t.Errorf("unit %d needs %d bytes, %v", u, bytes, found)
	}
	w.Limit = bytes
	if u, bytes, found := one.Oversized(m, w); found {
		t.Errorf("within as many bytes unit %d needs %d", u, bytes)
	}
	w.Limit = 0
	if u, bytes, found := one.Oversized(m, w); found {
		t.Errorf("without a limit unit %d needs %d", u, bytes)
	}
	m.Devices[0].Bytes, m.Devices[1].Bytes = 1000, 2000
	if _, bytes, found := one.Oversized(m, w); !found || bytes <= 2000 {
		t.Errorf("on small devices %d bytes, %v", bytes, found)
	}
}

// Where a unit is too large no number of devices has a plan.
func TestMoreDevicesDoNotHelpAUnitThatIsTooLarge(t *testing.T) {
	draws.Checks(t, 8, 25)
	rapid.Check(t, func(t *rapid.T) {
		p := randomSpace(t, 6, 3, 4)
		p.chain.Carries, p.chain.GradientCarries = randomCarries(t, p.chain)
		w := Options{Virtual: []int{p.virtual}, Schedules: []string{p.schedule.Name}, MicroBatches: []int{p.m}, State: p.wishes.State, Limit: rapid.Int64Range(1, 600).Draw(t, "within")}
		one := Costs{Chain: p.chain}
		u, bytes, found := one.Oversized(devices(1, 0), w)
		if !found {
			t.Skip("each has room")
		}
		for n := 1; n*p.virtual <= len(p.chain.Layers); n++ {
			w.Devices = n
			r, err := Search(context.Background(), Profile{[]Costs{one}}, devices(n, 0), w)
			if err != nil {
				t.Fatal(err)
			}
			if r.Best != nil {
				t.Fatalf("unit %d needs %d bytes, and %d devices have a plan of %v bytes within %d", u, bytes, n, r.Best.Peaks, w.Limit)
			}
		}
	})
}

// randomCarries draws what inputs of a chain share, and gradients.
func randomCarries(t *rapid.T, c remat.Chain) (carries, gradients []remat.Carry) {
	n := len(c.Layers)
	for range rapid.IntRange(0, 3).Draw(t, "carries") {
		from := rapid.IntRange(0, n-1).Draw(t, "from")
		to := rapid.IntRange(from+1, n).Draw(t, "to")
		if !slices.ContainsFunc(carries, func(k remat.Carry) bool { return k.From == from }) {
			carries = append(carries, remat.Carry{From: from, To: to, Bytes: rapid.Int64Range(0, c.Layers[from].Output).Draw(t, "shared")})
		}
		if !slices.ContainsFunc(gradients, func(k remat.Carry) bool { return k.To == to }) {
			gradients = append(gradients, remat.Carry{From: from, To: to, Bytes: rapid.Int64Range(0, c.Layers[to-1].Gradient).Draw(t, "shared gradient")})
		}
	}
	return carries, gradients
}

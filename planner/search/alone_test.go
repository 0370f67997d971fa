package search

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/remat"
)

// A unit that no device has room for is found, and what it needs.
func TestTooLarge(t *testing.T) {
	c := plainChain([]float64{10, 10, 10}, 1000)
	c.Layers[1].WeightGradient = 50_000
	p, m := Profile{[]Measured{{Rows: 4, Chain: c}}}, devices(2, 0)
	w := Wishes{Batch: 16, Limit: 200_000, State: 2, Schedules: []string{"1f1b"}}
	got, found := TooLarge(p, m, w)
	if !found || got.Unit != 1 || got.Name != c.Layers[1].Name || got.Rows != 4 || got.Kept != 4*50_000 || got.State != 2*50_000 || got.Bytes <= got.Kept || got.Limit != 200_000 {
		t.Errorf("%+v, %v", got, found)
	}
	w.Limit = got.Bytes
	if got, found := TooLarge(p, m, w); found {
		t.Errorf("within as many bytes: %+v", got)
	}
	w.Limit = 0
	if got, found := TooLarge(p, m, w); found {
		t.Errorf("without a limit: %+v", got)
	}
	m.Devices[0].Bytes, m.Devices[1].Bytes = 1000, 2000
	if got, found := TooLarge(p, m, w); !found || got.Limit != 2000 {
		t.Errorf("on small devices: %+v, %v", got, found)
	}
}

// Where a unit is too large no number of devices has a plan.
func TestMoreDevicesDoNotHelpAUnitThatIsTooLarge(t *testing.T) {
	draws.Checks(t, 8, 25)
	rapid.Check(t, func(t *rapid.T) {
		p := randomSpace(t, 6, 3, 4)
		p.chain.Carries, p.chain.GradientCarries = randomCarries(t, p.chain)
		w := Wishes{Virtual: []int{p.virtual}, Schedules: []string{p.schedule.Name}, MicroBatches: []int{p.m}, State: p.wishes.State, Limit: rapid.Int64Range(1, 600).Draw(t, "within")}
		of := Profile{[]Measured{{Chain: p.chain}}}
		one, found := TooLarge(of, devices(1, 0), w)
		if !found {
			t.Skip("each has room")
		}
		for n := 1; n*p.virtual <= len(p.chain.Layers); n++ {
			w.Devices = n
			r, err := Search(context.Background(), of, devices(n, 0), w)
			if err != nil {
				t.Fatal(err)
			}
			if r.Best != nil {
				t.Fatalf("%+v, and %d devices have a plan of %v bytes within %d", one, n, r.Best.Peaks, w.Limit)
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

// What a unit takes of more rows lies on the line through two smaller sizes, and its input counts although it shares
// memory with others.
func TestTooManyRows(t *testing.T) {
	const per = 1000
	var p Profile
	for rows := range 5 {
		if rows != 1 && rows != 2 && rows != 4 {
			continue
		}
		c := plainChain([]float64{10, 10}, int64(rows)*per)
		c.Input, c.InputGradient = 0, 0
		c.Layers[0].Output, c.Layers[0].Gradient = int64(rows)*per, int64(rows)*per
		c.Layers[1].Saved, c.Layers[1].Gradient, c.Layers[1].BackwardEarly, c.Layers[1].WeightGradient = int64(rows)*per+50, int64(rows)*per, 0, 100
		c.Carries = []remat.Carry{{From: 0, To: 1, Bytes: 1}}
		p.Measured = append(p.Measured, Measured{Rows: rows, Chain: c})
	}
	want := int64(4*8*per + 50 + 3*100) // input, saved, both gradients; the weights and two states
	w := Wishes{Batch: 16, State: 2, Schedules: []string{"1f1b"}, Limit: want * 15 / 16}
	got, found := TooManyRows(p, devices(2, 0), w, 8)
	if !found || got.Unit != 1 || got.Rows != 8 || got.Bytes != want || got.Limit != w.Limit {
		t.Errorf("%+v, %v; want unit 1 with %d bytes", got, found, want)
	}
	w.Schedules = []string{"1f1b", "zb-h1"} // whose backwards are in two parts, of which the input's gradient is not sure
	if got, found := TooManyRows(p, devices(2, 0), w, 8); found {
		t.Errorf("%+v, which may fit with backwards in two parts", got)
	}
	w.Limit = (want - 8*per) * 15 / 16
	if got, found := TooManyRows(p, devices(2, 0), w, 8); !found || got.Unit != 1 || got.Bytes != want-8*per {
		t.Errorf("%+v, %v; want unit 1 with %d bytes", got, found, want-8*per)
	}
	w.Schedules = []string{"1f1b"}
	early := &p.Measured[1].Chain.Layers[1].BackwardEarly // then a part of the rest may be gone when it is made
	*early = 1
	if got, found := TooManyRows(p, devices(2, 0), w, 8); !found || got.Unit != 1 || got.Bytes != want-8*per {
		t.Errorf("%+v, %v; want unit 1 with %d bytes", got, found, want-8*per)
	}
	*early, w.Limit = 0, want
	for _, of := range []Profile{p, {p.Measured[:1]}} {
		if got, found := TooManyRows(of, devices(2, 0), w, 8); found {
			t.Errorf("%d sizes: %+v, which may fit", len(of.Measured), got)
		}
	}
	w.Limit = want/2 - 1000 // of 4 rows
	if got, found := TooLarge(Profile{p.Measured[2:]}, devices(2, 0), w); !found || got.Unit != 1 || got.Bytes < 4*4*per {
		t.Errorf("%+v, %v; its input counts", got, found)
	}
	w.Schedules = append(w.Schedules, "zb-h1") // the gradient of its input is not sure
	if got, found := TooLarge(Profile{p.Measured[2:]}, devices(2, 0), w); found {
		t.Errorf("%+v, which may fit with backwards in two parts", got)
	}
}

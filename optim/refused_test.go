package optim_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// An update that does not fit a limit changes nothing, at whichever of its allocations it is
// refused, and when it is repeated under a higher limit the run has the bits of one that was never
// refused. What fits is what Need says.
func TestRefusedUpdateChangesNothing(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(5)
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.SampledFrom(rules).Draw(t, "rule")
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 300), 1, 5).Draw(t, "sizes")
		without := rapid.SliceOfN(rapid.Bool(), len(sizes), len(sizes)).Draw(t, "without a gradient")
		c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
		defer c.Close()
		type run struct {
			m      *module
			params []nn.NamedParam
			opt    optim.Optimizer
		}
		begin := func() run {
			m := &module{}
			for i, n := range sizes {
				m.Param(fmt.Sprint("p", i), nn.Normal(1), n)
			}
			r := run{m: m, params: nn.Params(m)}
			nn.Materialise(c, r.params, 1)
			r.opt, _ = optim.New(row.name, row.config)
			return r
		}
		free := func(r run) { r.opt.Close(); nn.Free(r.m) }
		grads := func(r run, step int) {
			var names []string
			for i, none := range without {
				if none && step == 0 {
					names = append(names, fmt.Sprint("p", i))
				}
			}
			setGrads(c, r.params, step, names...)
		}
		all := func(r run) map[string]string {
			out := values(r.params)
			maps.Copy(out, state(r.opt))
			return out
		}
		plain, refused := begin(), begin()
		defer free(plain)
		defer free(refused)
		for step := range 3 {
			grads(plain, step)
			plain.opt.Step(c, plain.params)
			grads(refused, step)
			before, live := all(refused), d.Memory().Live
			need := refused.opt.Need(refused.params)
			limit, slack := live, rapid.Int64Range(0, 300).Draw(t, "slack")
			for {
				d.SetLimit(limit)
				err := torch.Try(func() { refused.opt.Step(c, refused.params) })
				d.SetLimit(0)
				if err == nil {
					break
				}
				var e *torch.MemoryError
				if !errors.As(err, &e) {
					t.Fatal(err)
				}
				if now := d.Memory().Live; now != live {
					t.Fatalf("step %d, %d bytes available: a refused update leaves %d bytes", step, limit-live, now-live)
				}
				if after := all(refused); !maps.Equal(after, before) {
					t.Fatalf("step %d, %d bytes available: a refused update has changed something", step, limit-live)
				}
				// so that this allocation is let through and the next may not be
				limit = e.Live + e.Requested + slack
			}
			if took, most := limit-live, need.State+need.Scratch; took > most+slack || took < most && (step > 0 || !slices.Contains(without, true)) {
				t.Fatalf("step %d: an update needed %d bytes, up to %d of them not, and was to need %d", step, took, slack, most)
			}
			if !maps.Equal(all(refused), all(plain)) {
				t.Fatalf("step %d: other bits than a run that was never refused", step)
			}
		}
	})
}

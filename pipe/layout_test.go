package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Which stages of a step exchange something is known by what is received: neighbours always, and
// beyond them the ends of a skip. One within a stage adds none, and one to the next stage goes with
// the activation.
func TestWhichTransfersSkipsMake(t *testing.T) {
	torchtest.Check(t)
	plain := func() nn.Layer { return nn.NewTanh() }
	stash := func(name string, space nn.Namespace) nn.Layer {
		l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash(name, x); return c.Tanh(x) })
		l.Stashes(name)
		l.Isolate(space)
		return l
	}
	pop := func(name string, space nn.Namespace) nn.Layer {
		l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mul(x, c.Pop(name)) })
		l.Pops(name)
		l.Isolate(space)
		return l
	}
	all, one, two := nn.Namespace{}, nn.NewNamespace(), nn.NewNamespace()
	for _, row := range []struct {
		reason  string
		layers  []nn.Layer
		balance []int
		want    []string
	}{
		{"no skip", []nn.Layer{plain(), plain(), plain()}, []int{1, 1, 1}, []string{"0>1", "1>2"}},
		{"within a stage", []nn.Layer{stash("foo", all), pop("foo", all), plain(), plain()}, []int{2, 1, 1},
			[]string{"0>1", "1>2"}},
		{"to the next stage", []nn.Layer{stash("foo", all), pop("foo", all), plain()}, []int{1, 1, 1}, []string{"0>1", "1>2"}},
		{"to the next", []nn.Layer{stash("foo", all), plain(), pop("foo", all)}, []int{1, 1, 1},
			[]string{"0>1", "0>2", "1>2"}},
		{"two from different stages to one",
			[]nn.Layer{stash("foo", all), stash("bar", all), plain(), pop("bar", all), pop("foo", all)}, []int{1, 1,
				1, 2}, []string{"0>1", "0>3", "1>2", "1>3", "2>3"}},
		{"of one name in two namespaces", []nn.Layer{stash("foo", one), stash("foo", two), plain(), pop("foo", two),
			pop("foo", one)}, []int{1, 1, 1, 2}, []string{"0>1", "0>3", "1>2", "1>3", "2>3"}},
		{"one to two stages", []nn.Layer{stash("foo", all), plain(), pop("foo", all), pop("foo", all)},
			[]int{1, 1, 1, 1}, []string{"0>1", "0>2", "0>3", "1>2", "2>3"}},
	} {
		p := started(t, nn.NewSequential(row.layers...), pipe.Config{Balance: row.balance, Chunks: 2, Record: true})
		c := torch.NewCtx(torch.Options{})
		x := normal(2, 3)(c, 0).SetRequiresGrad(true)
		result, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, mean{})
		if err != nil {
			t.Fatalf("%s: %v", row.reason, err)
		}
		var want, got []string // forward, and back
		for _, edge := range row.want {
			for i := range 2 {
				want = append(want, fmt.Sprintf("%sF%d", edge, i), fmt.Sprintf("%c>%cB%d", edge[2], edge[0], i))
			}
		}
		for _, e := range result.Timeline.Events {
			if e.Action.Kind.Receive() {
				got = append(got, e.Action.String())
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: it received %v, want %v", row.reason, got, want)
		}
		x.SetGradOf(nil)
		c.Close()
	}
}

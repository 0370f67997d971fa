package optim_test

import (
	"maps"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// A group is updated as by an optimizer of its own, with its rate and its decay; a parameter is in the first
// group that has its name, and needs the memory of that group.
func TestGroups(t *testing.T) {
	torchtest.Check(t)
	none, some := 0.0, 0.3
	for _, row := range rules {
		c := torch.NewCtx(torch.Options{Threads: 1})
		grouped, apart := newModel(t, torch.CPU(0)), newModel(t, torch.CPU(0))
		first, second := apart[0].Name, apart[1].Name
		config := row.config
		config.Groups = []optim.Group{{Params: first[:len(first)-1] + "*" + first[len(first)-1:], Scale: 0.5, WeightDecay: &some}, {Params: second, WeightDecay: &none}, {Params: first, Scale: 9}, {Params: "nothing*"}}
		one := newOptimizer(t, row.name, config)
		body, bare := row.config, row.config
		body.WeightDecay, bare.WeightDecay = some, none
		each := []optim.Optimizer{newOptimizer(t, row.name, body), newOptimizer(t, row.name, bare), newOptimizer(t, row.name, row.config)}
		each[0].SetLR(0.5 * each[0].LR())
		lists := [][]nn.NamedParam{apart[:1], apart[1:2], apart[2:]}
		for step := range 3 {
			setGrads(c, grouped, step)
			setGrads(c, apart, step)
			need := optim.Need{}
			for i, o := range each {
				n := o.Need(lists[i])
				need.State, need.Scratch = need.State+n.State, max(need.Scratch, n.Scratch)
			}
			if got := one.Need(grouped); got != need {
				t.Errorf("%s: needs %+v; want %+v", row.title, got, need)
			}
			one.Step(c, grouped)
			for i, o := range each {
				o.Step(c, lists[i])
			}
		}
		kept := map[string]string{}
		for _, o := range each {
			maps.Copy(kept, state(o))
		}
		if !maps.Equal(values(grouped), values(apart)) || !maps.Equal(state(one), kept) {
			t.Errorf("%s: other bits than by an optimizer for each group", row.title)
		}
		c.Close()
	}
	for _, g := range []optim.Group{{Scale: 1}, {Params: "*", Scale: -1}, {Params: "*", WeightDecay: new(-1.0)}} {
		if _, err := optim.New("adam", optim.Config{Groups: []optim.Group{g}}); err == nil || !strings.Contains(err.Error(), "optim: adam: Groups is "+g.String()) {
			t.Errorf("%v: %v", g, err)
		}
	}
}

package profile

import (
	"slices"
	"time"

	"penstock/nn"
	"penstock/torch"
)

// flow is a tensor on its way from layer to layer: a copy, kept, of what the layer before gave.
type flow struct {
	t     *torch.Tensor // nil for a skip that is absent
	grad  bool          // its gradient goes back
	bytes int64         // of a transfer
	block *block        // that the original lies in

	original *torch.Tensor // only to be compared with
}

// begin makes the sample the first layer's input. Nobody saves the sample's own memory: a pipe's first stage holds it as its input.
func (m *measurement) begin(sample []*torch.Tensor) error {
	return attempt(theSample, func() error {
		defer m.c.Close()
		owned := block{creator: nobody, saver: nobody}
		for _, x := range sample {
			m.in = append(m.in, m.flow(x, m.in, &owned))
		}
		for _, f := range distinct(m.in) {
			m.found.input += f.bytes
		}
		return nil
	})
}

// flow copies what a layer gave, as a transfer would, and keeps the copy. An element that is an earlier one again shares its copy.
func (m *measurement) flow(t *torch.Tensor, earlier []flow, b *block) flow {
	f := flow{grad: t.RequiresGrad(), block: b, original: t}
	if i := slices.IndexFunc(earlier, func(e flow) bool { return e.original == t }); i >= 0 {
		f.t, f.bytes = m.c.Keep(m.c.Share(earlier[i].t)), earlier[i].bytes
		return f
	}
	f.t = m.c.Keep(m.c.CopyHere(t))
	_, f.bytes = f.t.Storage()
	return f
}

// distinct leaves out elements that are an earlier one again: they cross a border as one.
func distinct(flows []flow) []flow {
	var out []flow
	for i, f := range flows {
		if !slices.ContainsFunc(flows[:i], func(e flow) bool { return e.original == f.original }) {
			out = append(out, f)
		}
	}
	return out
}

// layer measures a layer and makes its output the input of the next.
func (m *measurement) layer(i int) error {
	m.at = i
	l := m.layers[i]
	return attempt(l.Name, func() error {
		defer m.c.Close()
		defer m.peer.Close()
		defer prepare(m.c, l, m.Seed)()
		var out result
		defer func() { out.free() }()
		m.bytes(&out)
		var forward, backward float64
		if !m.BytesOnly {
			var err error
			if forward, backward, err = m.seconds(); err != nil {
				return err
			}
			m.transfers(distinct(out.tensors))
			m.transfers(out.skips)
		}
		m.found.layer(l, forward, backward, m.in, out.tensors)
		m.pass(out)
		out = result{}
		return nil
	})
}

// result is what a layer gave: its output, and what it stashed for layers behind it, in the order of the routes.
type result struct{ tensors, skips []flow }

func (r result) free() {
	for _, f := range append(slices.Clone(r.tensors), r.skips...) {
		f.t.Free()
	}
}

// pass moves on to the next layer.
func (m *measurement) pass(out result) {
	result{m.in, nil}.free()
	m.in = out.tensors
	for _, r := range m.routes {
		if r.Stash == m.at && leaves(r) {
			m.skips[r.Key], out.skips = out.skips[0], out.skips[1:]
		}
		if f, ok := m.skips[r.Key]; ok && lastPop(r) <= m.at {
			m.found.skip(r, f)
			f.t.Free()
			delete(m.skips, r.Key)
		}
	}
}

// leaves says whether a skip goes to another layer.
func leaves(r nn.SkipRoute) bool { return lastPop(r) > r.Stash }

func lastPop(r nn.SkipRoute) int { return r.Pops[len(r.Pops)-1] }

// popsHere is how often the layer that is measured pops a skip from an earlier layer.
func (m *measurement) popsHere(r nn.SkipRoute) int {
	n := 0
	for _, p := range r.Pops {
		if p == m.at && r.Stash < m.at {
			n++
		}
	}
	return n
}

// run runs the layer once, forward. take makes of what flows in what the layer is given, owned by the context. What is returned is owned by it too: the output, and what was stashed for layers behind,
// nil where that is absent.
func (m *measurement) run(take func(f flow) *torch.Tensor) (out, stashed []*torch.Tensor, took time.Duration) {
	store := nn.NewSkipStore(m.routes, m.at, m.at+1)
	defer store.Free()
	var xs []*torch.Tensor
	for _, f := range m.in {
		xs = append(xs, take(f))
	}
	for _, r := range m.routes {
		if n := m.popsHere(r); n > 0 {
			given := make([]*torch.Tensor, n)
			if f := m.skips[r.Key]; f.t != nil {
				for i := range given {
					given[i] = take(f)
				}
			}
			store.Give(r.Key, given...)
		}
	}
	n := nn.NewCtx(m.c, nn.Config{Training: true, Recomputing: true, Seed: m.Seed, Skips: store, Extras: m.Extras})
	mark := m.c.Mark()
	was := m.c.SetAutocast(m.Autocast)
	start := m.now()
	ys := n.RunNamed(m.layers[m.at], xs)
	took = m.now() - start
	m.c.SetAutocast(was)
	for _, y := range ys {
		if !m.c.Owns(y) {
			y = m.c.Share(y) // a parameter
		}
		out = append(out, y)
	}
	for _, r := range m.routes {
		if r.Stash == m.at && leaves(r) {
			stashed = append(stashed, m.c.Adopt(store.Take(n, r.Key)))
		}
	}
	m.c.Release(mark, append(slices.Clone(out), stashed...)...)
	return out, stashed, took
}

func (m *measurement) close() {
	result{m.in, nil}.free()
	for _, f := range m.skips {
		f.t.Free()
	}
	m.c.Close()
	m.peer.Close()
}

package nn

import (
	"slices"

	"penstock.example/torch"
)

// Fork configures a fork of a context. Flags are added to those that the context has.
type Fork struct {
	Checkpointing, Recomputing bool
	Spans                      bool
	Skips                      *SkipStore // of the layers that will run
}

// Fork is a context for running the layers of the module that runs, at once or inside of Backward:
// on t, with c's place in the model, seed, extras and statistics. It does not change with c
// afterwards. Wrappers that run layers when they choose use it to be transparent; see FailedAt.
func (c *Ctx) Fork(t *torch.Ctx, f Fork) *Ctx {
	if c.failed == nil {
		c.failed = new(string)
	}
	n := *c
	n.Ctx, n.path = t, slices.Clone(c.path)
	n.spans, n.trace, n.skips = nil, f.Spans, f.Skips
	n.Checkpointing, n.Recomputing = c.Checkpointing || f.Checkpointing, c.Recomputing || f.Recomputing
	return &n
}

// FailedAt makes path, of a fork that has failed, what Path says.
func (c *Ctx) FailedAt(path string) {
	if len(c.path) > 0 {
		c.path = append(c.path[:0], path...)
	}
	if c.failed == nil {
		c.failed = new(string)
	}
	*c.failed = path
}

// SharedBeyond lists the parameters, each once, that modules of m share with modules that are not
// in m.
func SharedBeyond(m Module) []*Param {
	uses := map[*Param]int{}
	var order []*Param
	for _, p := range Shared(m) {
		owner := p.Owner()
		if uses[owner]++; uses[owner] == 1 {
			order = append(order, owner)
		}
	}
	return slices.DeleteFunc(order, func(p *Param) bool { return uses[p] > p.ties })
}

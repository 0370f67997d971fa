package nn

import (
	"fmt"
	"slices"
	"sync/atomic"

	"penstock.example/torch"
)

// A skip connection takes a tensor from one layer past others to a later one. The layers declare
// it, so that a model is verified before it runs and a pipe sends the tensor straight to the stage
// that needs it:
//
//	                     in the constructor   in Forward
//	the source           l.Stashes("skip")    c.Stash("skip", x)
//	each destination     l.Pops("skip")       skip := c.Pop("skip")
//
// Any module may declare skips, however deeply nested.

// Namespace keeps equal names of skips apart. Names are in the zero Namespace unless Isolate moves
// them. Namespaces are comparable.
type Namespace struct{ number uint64 }

var namespaces atomic.Uint64

// NewNamespace makes a namespace that differs from all others.
func NewNamespace() Namespace { return Namespace{namespaces.Add(1)} }

// SkipKey identifies a skip connection in a model.
type SkipKey struct {
	Namespace Namespace
	Name      string
}

func (k SkipKey) String() string {
	if k.Namespace.number == 0 {
		return fmt.Sprintf("%q", k.Name)
	}
	return fmt.Sprintf("%q of namespace %d", k.Name, k.Namespace.number)
}

// Stashes declares that every forward of the module stashes tensors under these names.
func (b *Base) Stashes(names ...string) { b.stashes = append(b.stashes, keys(names)...) }

// Pops declares that every forward of the module pops the tensors of these names.
func (b *Base) Pops(names ...string) { b.pops = append(b.pops, keys(names)...) }

func keys(names []string) []SkipKey {
	out := make([]SkipKey, len(names))
	for i, n := range names {
		out[i].Name = n
	}
	return out
}

// Isolate moves the skips that the module and its descendants have declared into a namespace: all,
// or only those with the given names.
func (b *Base) Isolate(space Namespace, only ...string) {
	for _, list := range [][]SkipKey{b.stashes, b.pops} {
		for i := range list {
			if len(only) == 0 || slices.Contains(only, list[i].Name) {
				list[i].Namespace = space
			}
		}
	}
	for _, c := range b.children {
		c.m.node().Isolate(space, only...)
	}
}

// Stash hands t on to the layers that pop the name, which the running module must have declared.
// Nil makes Pop return nil.
func (c *Ctx) Stash(name string, t *torch.Tensor) {
	c.Skips.stash(c, c.declaredSkip("stash", name, &c.stashed), t)
}

// Pop returns the tensor that an earlier layer stashed under the name, owned by the context, or nil
// if that layer stashed nil. The running module must have declared it. Several layers may pop one
// stash, each once.
func (c *Ctx) Pop(name string) *torch.Tensor {
	return c.Skips.pop(c, c.declaredSkip("pop", name, &c.popped))
}

// declaredSkip returns the key of a name that the running module has declared to stash or pop, and
// notes its use.
func (c *Ctx) declaredSkip(verb, name string, used *[]SkipKey) SkipKey {
	var declared []SkipKey
	if c.running != nil {
		if declared = c.running.node().pops; verb == "stash" {
			declared = c.running.node().stashes
		}
	}
	at := slices.IndexFunc(declared, func(k SkipKey) bool { return k.Name == name })
	if at < 0 {
		c.refuse(verb, SkipKey{Name: name}, "is not declared; call Stashes or Pops in the constructor "+
			"of the module that is running")
	}
	key := declared[at]
	if slices.Contains(*used, key) {
		c.refuse(verb, key, "is used twice in one forward")
	}
	if c.Skips == nil {
		c.refuse(verb, key, "is used outside of a model; run the layer as part of an nn.Sequential")
	}
	*used = append(*used, key)
	return key
}

// checkSkips checks that the running module stashed and popped all that it declared.
func (c *Ctx) checkSkips() {
	b := c.running.node()
	for _, k := range b.stashes {
		if !slices.Contains(c.stashed, k) {
			c.refuse("stash", k, "is declared and was not stashed; stash nil if there is nothing to hand on")
		}
	}
	for _, k := range b.pops {
		if !slices.Contains(c.popped, k) {
			c.refuse("pop", k, "is declared and was not popped; pop it even where it is not used")
		}
	}
}

func (c *Ctx) refuse(verb string, key SkipKey, why string) { c.fail(verb, nil, "skip %v %s", key, why) }

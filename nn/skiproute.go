package nn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// SkipRoute is a skip of a model: from the flattened layer that stashes it to the layers that pop
// it.
type SkipRoute struct {
	Key   SkipKey
	Stash int // index in Layers
	// Pops are indices in Layers, in the order of the pops. A layer is listed once for each pop of
	// its children.
	Pops []int
}

// VerifySkips returns nil if every skip of the model is stashed by one module and popped by later
// modules, and otherwise an error that lists all faults. A layer may pop what its child stashes, and
// a child may pop what its layer stashes.
func VerifySkips(model *Sequential) error {
	_, err := model.SkipRoutes()
	return err
}

// SkipRoutes lists the skips in the order in which they are stashed, children of a layer in the
// order of declaration. It returns VerifySkips' error.
func (s *Sequential) SkipRoutes() ([]SkipRoute, error) {
	return skipRoutes(s.Layers()...)
}

func skipRoutes(layers ...NamedLayer) ([]SkipRoute, error) {
	v := verifier{stash: map[SkipKey]*declaration{}}
	for i, l := range layers {
		v.visit(i, l.Name, l.node())
	}
	popped := map[SkipKey]bool{}
	for _, p := range v.pops {
		popped[p.key] = true
		switch from := v.stash[p.key]; {
		case from == nil:
			v.report("%q pops %v, which no layer stashes", p.path, p.key)
		case from.time > p.time:
			v.report("%q pops %v before %q stashes it", p.path, p.key, from.path)
		default:
			from.pops = append(from.pops, p.layer)
		}
	}
	var routes []SkipRoute
	for _, d := range v.stashes {
		if !popped[d.key] {
			v.report("%q stashes %v, which no layer pops", d.path, d.key)
		}
		routes = append(routes, SkipRoute{d.key, d.layer, d.pops})
	}
	if len(v.problems) > 0 {
		return nil, errors.New("nn: the model's skip connections do not match:\n  * " +
			strings.Join(v.problems, "\n  * "))
	}
	return routes, nil
}

// declaration is a stash or a pop of a module.
type declaration struct {
	key   SkipKey
	path  string // of the module
	time  int    // of a stash when the module begins, of a pop when it ends
	layer int    // index in Layers
	pops  []int  // of a stash: the layers that pop it
}

type verifier struct {
	clock    int // number of modules that have begun plus number that have ended
	stash    map[SkipKey]*declaration
	stashes  []*declaration
	pops     []*declaration
	problems []string
}

func (v *verifier) report(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

func (v *verifier) visit(layer int, path string, b *Base) {
	v.clock++
	begin := v.clock
	twice := func(verb string, list []SkipKey, i int) bool { // by name, as Stash and Pop look names up
		again := slices.ContainsFunc(list[:i], func(k SkipKey) bool { return k.Name == list[i].Name })
		if again {
			v.report("%q %s %v twice", path, verb, list[i])
		}
		return again
	}
	for i, k := range b.stashes {
		d := &declaration{key: k, path: path, time: begin, layer: layer}
		if first := v.stash[k]; twice("stashes", b.stashes, i) {
		} else if first != nil {
			v.report("%q and %q both stash %v; Isolate one in a namespace of its own, with the layers "+
				"that pop it", first.path, path, k)
		} else {
			v.stash[k] = d
			v.stashes = append(v.stashes, d)
		}
	}
	for _, c := range b.children {
		v.visit(layer, join(path, c.name), c.m.node())
	}
	v.clock++
	for i, k := range b.pops {
		if !twice("pops", b.pops, i) {
			if slices.Contains(b.stashes, k) {
				v.report("%q both stashes and pops %v", path, k)
			}
			v.pops = append(v.pops, &declaration{key: k, path: path, time: v.clock, layer: layer})
		}
	}
}

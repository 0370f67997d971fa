package balance

import (
	"math"
	"slices"
)

// chain is a problem in whole numbers, indexed for a walk over its stages.
type chain struct {
	layers int
	terms  []intTerms
	of     []int // by stage, as in problem
	skips  []route

	stashes [][]int // by layer: the skips that begin there
	pops    [][]pop // by layer: the skips that are popped there
	open    [][]int // by border: the skips whose destinations are not settled there, see node
}

// prices are terms in whole numbers.
type intTerms struct {
	layer, enter, leave []uint64
	skips               []intSkipTerms
}

type intSkipTerms struct{ in, out, keep uint64 }

// termsOf are those of a stage, by their index.
func (c *chain) termsOf(stage int) int {
	if c.of == nil {
		return 0
	}
	return c.of[stage]
}

// pop is the k-th of the layers that a skip goes to.
type pop struct{ skip, k int }

// index fills the tables. A skip is open at border i, before layer i, if it began before i and two or more of the layers from i on pop it: in how many stages they lie
// is then up to the cuts from i on, and part of what its stage pays.
func (c *chain) index() {
	layers := c.layers
	c.stashes, c.pops, c.open = make([][]int, layers), make([][]pop, layers), make([][]int, layers+1)
	for s, l := range c.skips {
		c.stashes[l.from] = append(c.stashes[l.from], s)
		for k, to := range l.to {
			c.pops[to] = append(c.pops[to], pop{s, k})
		}
		if len(l.to) > 1 {
			for border := l.from + 1; border <= l.to[len(l.to)-2]; border++ {
				c.open[border] = append(c.open[border], s)
			}
		}
	}
}

// popsFrom is how many layers from border on pop a skip.
func (l route) popsFrom(border int) int {
	i, _ := slices.BinarySearch(l.to, border)
	return len(l.to) - i
}

// node is a border, and how the layers behind it lie to the skips that are open there: into how many stages each goes. Without skips that are popped more
// than once a border has one node.
type node struct {
	border int
	stages []int // of the open skips, in the order of chain.open
	row
}

// edge leads from node to node: the layers between two borders, as one stage, and what that costs, by prices.
type edge struct {
	from, to *node
	costs    []uint64 // valid while it is visited
}

// graph is the nodes of a chain, by border. What can follow a border is known before what leads to it, so it is filled from the end.
type graph struct {
	*chain
	sums  []uint64 // of layers at their least, from the first
	n     int
	bound uint64
	nodes [][]*node
}

// walk calls visit for every stage that at some prices costs at most bound and that can be part of n stages that all do. Stages come with the first layer descending, then with the end
// ascending. fill makes the row of a node that is reached for the first time, once its range is known.
func (g *graph) eachStage(fill func(*node), visit func(edge)) {
	layers := g.layers
	g.nodes = make([][]*node, layers+1)
	for start := layers; start >= 0; start-- {
		low, high := g.reach(start)
		if low > high {
			continue // and no stage ends here
		}
		ranged := func(n *node) {
			n.low, n.high = low, high
			fill(n)
		}
		if start < layers {
			g.stagesFrom(start, ranged, visit)
			continue
		}
		end := &node{border: layers}
		ranged(end)
		g.nodes[layers] = []*node{end}
	}
}

// tally is what a stage costs at some prices so far.
type tally struct {
	*intTerms
	inside  uint64 // its layers, and what enters: never falls as the stage grows
	leaving uint64 // of settled skips
}

// stagesFrom visits the stages whose first layer is start. A stage that takes in one layer more may become cheaper, as less may cross its border; its layers, and what enters, only become more. So
// that part of the cost says when to stop.
func (g *graph) stagesFrom(start int, fill func(*node), visit func(edge)) {
	tallies, costs := make([]tally, len(g.terms)), make([]uint64, len(g.terms))
	for i := range tallies {
		tallies[i] = tally{intTerms: &g.terms[i], inside: g.terms[i].enter[start]}
	}
	for end := start + 1; end <= g.layers; end++ {
		last, least := end-1, uint64(math.MaxUint64)
		for i := range tallies {
			g.grow(&tallies[i], start, last)
			least = min(least, tallies[i].inside)
		}
		if least > g.bound {
			return
		}
		for _, to := range g.nodes[end] {
			least := uint64(math.MaxUint64)
			for i, t := range tallies {
				costs[i] = t.inside + t.leaving + t.leave[last]
				for k, s := range g.open[end] {
					if g.skips[s].from >= start {
						costs[i] += t.skips[s].out * uint64(to.stages[k])
					}
				}
				least = min(least, costs[i])
			}
			if least <= g.bound {
				visit(edge{g.before(start, to, fill), to, costs})
			}
		}
	}
}

// grow takes in the next layer.
func (g *graph) grow(t *tally, start, last int) {
	t.inside += t.layer[last]
	for _, p := range g.pops[last] {
		l, price := &g.skips[p.skip], &t.skips[p.skip]
		if l.from < start {
			if p.k == 0 || l.to[p.k-1] < start {
				t.inside += price.in
			}
			continue
		}
		switch len(l.to) - 1 - p.k {
		case 0: // all inside
			t.leaving -= price.out + price.keep
		case 1: // settled: one stage
			t.leaving += price.out
		}
	}
	for _, s := range g.stashes[last] {
		t.leaving += t.skips[s].keep
		if len(g.skips[s].to) == 1 {
			t.leaving += t.skips[s].out
		}
	}
}

// before is the node at border from which a stage leads to the node to.
func (g *graph) before(border int, to *node, fill func(*node)) *node {
	var stages []int
	for _, s := range g.open[border] {
		l := &g.skips[s]
		count := l.popsFrom(to.border)
		if count > 1 {
			i, _ := slices.BinarySearch(g.open[to.border], s)
			count = to.stages[i]
		}
		if l.popsFrom(border) > l.popsFrom(to.border) {
			count++
		}
		stages = append(stages, count)
	}
	for _, known := range g.nodes[border] {
		if slices.Equal(known.stages, stages) {
			return known
		}
	}
	made := &node{border: border, stages: stages}
	fill(made)
	g.nodes[border] = append(g.nodes[border], made)
	return made
}

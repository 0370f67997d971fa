package balance

import (
	"math"
	"slices"
)

// chain is a problem in whole numbers, with tables for visiting its stages.
type chain struct {
	layers int
	terms  []intTerms
	of     []int // by stage, as in problem
	skips  []route

	stashes [][]int // by layer: the skips that it stashes
	pops    [][]pop // by layer: the skips that it pops
	open    [][]int // by border: the skips that are open there, see index
}

// intTerms are terms in whole numbers.
type intTerms struct {
	layer, enter, leave []uint64
	skips               []intSkipTerms
}

type intSkipTerms struct{ in, out, keep uint64 }

// termsOf returns the index of a stage's terms.
func (c *chain) termsOf(stage int) int {
	if c.of == nil {
		return 0
	}
	return c.of[stage]
}

// pop says that a layer is the k-th that pops a skip.
type pop struct{ skip, k int }

// index fills the tables.
//
// A skip is open at border i, before layer i, if it began before i and at least two layers from i
// on pop it. The cuts after i then decide in how many stages those layers lie, and its own stage
// pays for each.
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

// popsFrom returns how many layers from border on pop a skip.
func (l route) popsFrom(border int) int {
	i, _ := slices.BinarySearch(l.to, border)
	return len(l.to) - i
}

// node is a border together with the number of later stages that each open skip goes to. Where no
// skip is popped more than once, a border has one node.
type node struct {
	border int
	stages []int // by open skip, in the order of chain.open: later stages that pop it
	row
}

// edge is a stage: the layers between the borders of two nodes, with its cost by the index of
// terms.
type edge struct {
	from, to *node
	costs    []uint64 // valid during the visit
}

// graph is the nodes of a chain, by border. A node depends on the cuts after its border, so the
// graph is filled from the last border to the first.
type graph struct {
	*chain
	sums  []uint64 // prefix sums of the layers' least costs
	n     int
	bound uint64
	nodes [][]*node
}

// eachStage calls visit for every stage that costs at most bound under some terms and can be part
// of n stages that all do. Stages come by first layer descending, then by end ascending. fill makes
// the row of a node when the node is first reached, with its range set.
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

// tally adds up the cost of a stage, under some terms, while the stage grows.
type tally struct {
	*intTerms
	inside  uint64 // its layers, and what enters; it never falls as the stage grows
	leaving uint64 // what leaves by skips that are not open at its end
}

// stagesFrom visits the stages whose first layer is start.
//
// A stage may become cheaper when it takes one more layer, as less may cross its border. Its layers
// and what enters only add up. So that part of the cost says when to stop.
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

// grow adds the layer last to a stage that begins at start.
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
		case 0: // all layers that pop it are in the stage
			t.leaving -= price.out + price.keep
		case 1: // one is left: it goes to one later stage
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

// before returns the node at border from which a stage leads to the node to.
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

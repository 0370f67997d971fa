package solver

import (
	"cmp"
	"math"
	"slices"
)

// steadySums is how many sums of held bytes steady tries.
const steadySums = 64

// steadySums are the sums that steady tries, ascending.
func (l *levels) steadySums() (list []int) {
	for q := range steadySums {
		if sum := l.levels * (q + 1) / steadySums; sum > 0 {
			list = append(list, sum)
		}
	}
	return slices.Compact(list)
}

// steady are caps where forwards and backwards alternate, as in 1F1B. Micro-batches of a stage whose
// numbers differ by the most that it has in flight take each other's place, so they get the same
// cap. The caps of all places have a sum. For each of some sums, dynamic programming divides it
// among the places: a place with s of S units has S-s units of others at its backward.
func (l *levels) steady() (list [][]int64) {
	f := l.f
	place := make([]int, len(f.items))
	places := 0
	for stage := range f.stages {
		width := f.inFlight(stage)
		for b := range f.k {
			place[stage*f.k+b] = places + b%width
		}
		places += min(width, f.k)
	}
	count := make([][]int, places) // by place and class: items
	for i, p := range place {
		if count[p] == nil {
			count[p] = make([]int, len(l.classes))
		}
		count[p][l.of[i]]++
	}
	type outcome struct {
		time float64
		caps []int64
	}
	var all []outcome
	var memory division
	for k, sum := range l.steadySums() {
		shares, time := l.divide(&memory, k, sum, count)
		if math.IsInf(time, 1) {
			continue
		}
		caps := make([]int64, len(f.items))
		for i, p := range place {
			caps[i] = int64(shares[p]) * l.unit
		}
		all = append(all, outcome{time, caps})
	}
	slices.SortStableFunc(all, func(a, b outcome) int { return cmp.Compare(a.time, b.time) })
	for _, o := range all {
		list = append(list, o.caps)
	}
	return list
}

// division is memory that divide uses again and again.
type division struct {
	after, best []float64
	share       [][]int16
}

// divide gives each place a share of the k-th sum of levels, so that the time of all items is least.
func (l *levels) divide(memory *division, k, sum int, count [][]int) (shares []int, time float64) {
	memory.after, memory.best, memory.share = sized(memory.after, sum+1), sized(memory.best, sum+1), sized(memory.share, len(count))
	after, best, share := memory.after, memory.best, memory.share
	for r := range after {
		after[r] = math.Inf(1)
	}
	after[0] = 0
	var costs stairs
	for p, classes := range count {
		if p == 0 || !slices.Equal(classes, count[p-1]) {
			costs = l.costs(k, classes)
		}
		for r := range best {
			best[r] = math.Inf(1)
		}
		share[p] = sized(share[p], sum+1)
		clear(share[p])
		for r, cost := range after {
			if math.IsInf(cost, 1) {
				continue
			}
			for _, one := range costs {
				s := int(one.s)
				if s > sum-r {
					break
				}
				if all := cost + one.time; all < best[r+s] {
					best[r+s], share[p][r+s] = all, int16(s)
				}
			}
		}
		after, best = best, after
	}
	at := 0
	for r, cost := range after {
		if cost < after[at] {
			at = r
		}
	}
	time = after[at]
	shares = make([]int, len(count))
	if math.IsInf(time, 1) {
		return shares, time
	}
	for p := len(count) - 1; p >= 0; p-- {
		shares[p] = int(share[p][at])
		at -= shares[p]
	}
	return shares, time
}

// costs are the times of a place that has so many items of each class, where the caps have the k-th sum.
func (l *levels) costs(k int, classes []int) (out stairs) {
	var steps []int32
	for c, n := range classes {
		if n > 0 {
			for _, one := range l.classes[c].above[k] {
				steps = append(steps, one.s)
			}
		}
	}
	slices.Sort(steps)
	at := make([]int, len(classes)) // by class: how many of its stairs are behind
	for _, s := range slices.Compact(steps) {
		sum := 0.0
		for c, n := range classes {
			if n == 0 {
				continue
			}
			list := l.classes[c].above[k]
			for at[c] < len(list) && list[at[c]].s <= s {
				at[c]++
			}
			if at[c] == 0 {
				sum = math.Inf(1)
				break
			}
			sum += float64(n) * list[at[c]-1].time
		}
		if !math.IsInf(sum, 1) {
			out = append(out, stair{s, sum})
		}
	}
	return out
}

// average is a bound that looks at all backwards together. Let h(i) be what item i holds, n(i) the
// number of backwards at which it is in flight, its own included, and S(i) what all items in flight
// at its backward hold. Then the S(i) and the n(i) h(i) have the same sum, so for every price
//
//	sum of time(S(i) - h(i), h(i))  =  sum of time(S(i) - h(i), h(i)) - price (S(i) - n(i) h(i))
//
// and the sum is not below that of the least of each of its terms. An item that holds more than s-1
// units and at most s, while the others hold r units or more and fewer than r+1, is given the time
// of r and s, and the others' r+1 and its own s-1 units.
func (l *levels) average() float64 {
	type term struct{ class, backwards int }
	terms := map[term]int{}
	seen := 0
	since := make([]int, len(l.f.items))
	for _, e := range l.f.events {
		if e.item < 0 {
			continue
		}
		if !e.backward {
			since[e.item] = seen
			continue
		}
		if l.f.items[e.item].side != nil {
			seen++
			terms[term{l.of[e.item], seen - since[e.item]}]++
		}
	}
	// A term depends on r and s only by what they cost at a price of 1: of those that cost the same the
	// least time counts, which is found once for all prices.
	w := l.levels + 1
	type priced struct {
		count int
		least []float64 // by the cost, from -w on
	}
	var list []priced
	for t, n := range terms {
		p := priced{n, slices.Repeat([]float64{math.Inf(1)}, w+(t.backwards-1)*w+1)}
		times := l.classes[t.class].below
		for r := range w {
			at := w - r - 1
			for _, one := range times[r] {
				cost := at + (t.backwards-1)*max(int(one.s)-1, 0)
				p.least[cost] = min(p.least[cost], one.time)
			}
		}
		list = append(list, p)
	}
	at := func(price float64) (sum float64) {
		for _, p := range list {
			least := math.Inf(1)
			for cost, time := range p.least {
				least = min(least, time+price*float64(cost-w))
			}
			if math.IsInf(least, 1) {
				return 0
			}
			sum += float64(p.count) * least
		}
		return sum
	}
	// The sum is concave in the price.
	low, high := math.Log(1e-6*l.f.once()/float64(l.levels)), math.Log(l.f.once()/float64(l.levels))
	best := 0.0
	for range prices {
		left, right := low+(high-low)/3, high-(high-low)/3
		atLeft, atRight := at(math.Exp(left)), at(math.Exp(right))
		if best = max(best, atLeft, atRight); atLeft < atRight {
			low = left
		} else {
			high = right
		}
	}
	return best
}

// prices is how often average narrows the range of prices to two thirds.
const prices = 10

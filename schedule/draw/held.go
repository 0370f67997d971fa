package draw

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock.example/schedule"
)

// level is the memory of a worker from a time on.
type level struct {
	at   time.Duration
	held int64
}

// held returns the memory of a worker over time. For recorded events it is the bytes that are live
// after each. Otherwise it is the number of micro-batches with a graph on one of its stages: from
// the start of its forward, or of its recomputation if it has one, to the end of its backward.
func held(events []schedule.Event, bytes bool) []level {
	var out []level
	if bytes {
		for _, e := range events {
			if e.Action.Kind != schedule.Reduce || e.Live != 0 {
				out = append(out, level{e.End, e.Live})
			}
		}
		slices.SortStableFunc(out, func(a, b level) int { return cmp.Compare(a.at, b.at) })
		return out
	}
	again := map[[2]int]bool{}
	for _, e := range events {
		if e.Action.Kind == schedule.Recompute {
			again[[2]int{e.Action.Stage, e.Action.MicroBatch}] = true
		}
	}
	for _, e := range events {
		switch e.Action.Kind {
		case schedule.Forward:
			if !again[[2]int{e.Action.Stage, e.Action.MicroBatch}] {
				out = append(out, level{e.Start, 1})
			}
		case schedule.Recompute:
			out = append(out, level{e.Start, 1})
		case schedule.Backward, schedule.BackwardWeight:
			out = append(out, level{e.End, -1})
		}
	}
	// What ends makes room for what starts at the same time.
	slices.SortStableFunc(out,
		func(a, b level) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.held, b.held)) })
	var sums []level
	var now int64
	for _, l := range out {
		now += l.held
		if n := len(sums); n > 0 && sums[n-1].at == l.at {
			sums[n-1].held = now
		} else {
			sums = append(sums, level{l.at, now})
		}
	}
	return sums
}

// curve draws a worker's memory below its row, all workers on one scale.
func (p *picture) curve(w, y int) {
	if p.peak <= 0 {
		return
	}
	height := func(n int64) float64 { return float64(y+curve) - float64(curve-2)*float64(max(n, 0))/float64(p.peak) }
	fmt.Fprintf(&p.b, `<path d="M%.2f %d`, p.x(p.start), y+curve)
	for _, l := range p.held[w] {
		fmt.Fprintf(&p.b, "H%.2fV%.2f", p.x(l.at), height(l.held))
	}
	fmt.Fprintf(&p.b, `H%.2fV%dZ" fill="#b9c4d6" stroke="#5d6f8c" stroke-width="0.8"/>`+"\n",
		p.x(p.end), y+curve)
	most := fmt.Sprintf("at most %d held", p.most[w])
	if p.bytes {
		most = "at most " + p.o.Bytes(p.most[w])
	}
	p.text(float64(p.left+plain+10), float64(y+14), 12, "start", "#555555", most)
}

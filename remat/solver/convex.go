package solver

import (
	"math"
	"slices"
	"sort"
)

// convex is a falling convex function from bytes to time. It is infinite below its first vertex,
// linear from each vertex to the next, and constant from the last one on. Without vertices it is
// infinite everywhere.
type convex []vertex

type vertex struct{ bytes, time float64 }

// at is the time for so many bytes.
func (f convex) at(bytes float64) float64 {
	k := sort.Search(len(f), func(k int) bool { return f[k].bytes > bytes })
	switch k {
	case 0:
		return math.Inf(1)
	case len(f):
		return f[k-1].time
	}
	return f[k-1].to(f[k], bytes)
}

// to is the time on the line through two vertices.
func (v vertex) to(w vertex, bytes float64) float64 {
	return v.time + (w.time-v.time)*((bytes-v.bytes)/(w.bytes-v.bytes))
}

// push appends a vertex and removes those above the line to it. The vertex has at least the bytes
// of the last one.
func (f convex) push(v vertex) convex {
	if n := len(f); n > 0 && f[n-1].time <= v.time {
		return f
	}
	for n := len(f); n > 0; n = len(f) {
		last := f[n-1]
		if last.bytes < v.bytes && (n == 1 || (last.time-f[n-2].time)*(v.bytes-last.bytes) < (v.time-last.time)*(last.bytes-f[n-2].bytes)) {
			break
		}
		f = f[:n-1]
	}
	return append(f, v)
}

// lower is the greatest convex function below f and below g. g is moved by bytes and time, and does
// not count below from bytes. The result overwrites out.
func (f convex) lower(out, g convex, bytes, time, from float64) convex {
	out = out[:0]
	first := g.at(from - bytes)
	if math.IsInf(first, 1) {
		first = math.Inf(-1) // g begins later
	}
	k := 0
	next := func() (v vertex, ok bool) {
		for k < len(g) && g[k].bytes+bytes <= from {
			k++
		}
		if !math.IsInf(first, -1) {
			return vertex{from, first + time}, true
		}
		if k == len(g) {
			return vertex{}, false
		}
		return vertex{g[k].bytes + bytes, g[k].time + time}, true
	}
	v, ok := next()
	for _, w := range f {
		for ok && (v.bytes < w.bytes || v.bytes == w.bytes && v.time < w.time) {
			out = out.push(v)
			if math.IsInf(first, -1) {
				k++
			}
			first = math.Inf(-1)
			v, ok = next()
		}
		out = out.push(w)
	}
	for ok {
		out = out.push(v)
		if math.IsInf(first, -1) {
			k++
		}
		first = math.Inf(-1)
		v, ok = next()
	}
	return out
}

// plus is the sum of f and g. It overwrites out.
func (f convex) plus(out, g convex) convex {
	out = out[:0]
	if len(f) == 0 || len(g) == 0 {
		return out
	}
	i, j := 0, 0
	for i < len(f) || j < len(g) {
		var bytes float64
		switch {
		case j == len(g) || i < len(f) && f[i].bytes <= g[j].bytes:
			bytes = f[i].bytes
		default:
			bytes = g[j].bytes
		}
		for i < len(f) && f[i].bytes <= bytes {
			i++
		}
		for j < len(g) && g[j].bytes <= bytes {
			j++
		}
		if i > 0 && j > 0 {
			out = append(out, vertex{bytes, f.after(i, bytes) + g.after(j, bytes)})
		}
	}
	return out
}

// after is the time at so many bytes, which are not below the first k vertices and below all
// others; k > 0.
func (f convex) after(k int, bytes float64) float64 {
	if k == len(f) || f[k-1].bytes == bytes {
		return f[k-1].time
	}
	return f[k-1].to(f[k], bytes)
}

// mostVertices is the number of vertices that simple leaves. It does nothing with up to twice as
// many.
const mostVertices = 48

// simple overwrites f by a function of few vertices that is nowhere above it. An edge is removed,
// and its neighbours continued until they meet, where that is not far below the edge.
func (f convex) simple() convex {
	if len(f) <= 2*mostVertices {
		return f
	}
	var below []float64
	for len(f) > mostVertices {
		below = below[:0]
		for k := 1; k+2 < len(f); k++ {
			_, far := f.meet(k)
			below = append(below, far)
		}
		slices.Sort(below)
		most := below[len(below)/2]
		out := f[:1]
		for k := 1; k < len(f); k++ {
			if k+2 < len(f) {
				if v, far := f.meet(k); far <= most {
					out = append(out, v)
					k++
					continue
				}
			}
			out = append(out, f[k])
		}
		f = out
	}
	return f
}

// meet is where the neighbours of the edge from vertex k to k+1 meet when they are continued, and
// how far that is below the edge.
func (f convex) meet(k int) (v vertex, below float64) {
	a, b, c, d := f[k-1], f[k], f[k+1], f[k+2]
	left, right := (b.time-a.time)/(b.bytes-a.bytes), (d.time-c.time)/(d.bytes-c.bytes)
	v.bytes = (c.time - b.time + left*b.bytes - right*c.bytes) / (left - right)
	v.bytes = min(max(v.bytes, b.bytes), c.bytes)
	v.time = min(b.time+left*(v.bytes-b.bytes), c.time+right*(v.bytes-c.bytes))
	return v, b.to(c, v.bytes) - v.time
}

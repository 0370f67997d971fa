package plan

import (
	"fmt"
	"slices"
	"strings"
)

// String is the plan as a table, of its costs and then its operations in short, sixteen a line with the number of the first:
//
//	8 operations, peak 96 bytes of 100, 41 us (no plan takes less than 40.5)
//	   0  K0 F1 S2 L  B2 S0 ...
func (p Plan) String() string {
	limit := ", no limit"
	if p.Limit > 0 {
		limit = fmt.Sprintf(" of %d", p.Limit)
	}
	if !p.Feasible {
		return fmt.Sprintf("not feasible: %d bytes%s\n", p.Peak, limit)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, peak %d bytes%s, %.6g us (no plan takes less than %.6g)\n", len(p.Ops), p.Peak, limit, p.Time, p.LowerBound)
	width := 0
	for _, o := range p.Ops {
		width = max(width, len(o.String()))
	}
	const perLine = 16
	for first := 0; first < len(p.Ops); first += perLine {
		line := fmt.Sprintf("%6d ", first)
		for _, o := range p.Ops[first:min(first+perLine, len(p.Ops))] {
			line += fmt.Sprintf(" %-*s", width, o)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// Diff is how plan b differs from plan a, "" if it does not: a line for each number that is another, and one for each place where operations of a are left out (-) or others put in (+), with the
// number of the first of them in their own plan:
//
//	peak_bytes: 96 -> 84
//	- 3: S3 S4
//	+ 3: K3 F4
func Diff(a, b Plan) string {
	var out strings.Builder
	number := func(name string, x, y any) {
		if x != y {
			fmt.Fprintf(&out, "%s: %v -> %v\n", name, x, y)
		}
	}
	number("chain", a.Chain, b.Chain)
	number("feasible", a.Feasible, b.Feasible)
	number("limit_bytes", a.Limit, b.Limit)
	number("peak_bytes", a.Peak, b.Peak)
	number("time_us", a.Time, b.Time)
	number("lower_bound_us", a.LowerBound, b.LowerBound)
	i, j := 0, 0
	for _, same := range append(common(a.Ops, b.Ops), match{len(a.Ops), len(b.Ops), 0}) {
		if same.a > i {
			fmt.Fprintf(&out, "- %d: %s\n", i, FormatOps(a.Ops[i:same.a]))
		}
		if same.b > j {
			fmt.Fprintf(&out, "+ %d: %s\n", j, FormatOps(b.Ops[j:same.b]))
		}
		i, j = same.a+same.n, same.b+same.n
	}
	return out.String()
}

// match says that n operations from number a on in one plan are those from b on in the other.
type match struct{ a, b, n int }

// maxDiff bounds what common remembers: so many changes, squared. Plans that differ in more are taken to differ between their common beginning and end.
const maxDiff = 2000

// common finds what two lists have in common, in order, so that as little as can be is left out and put in (Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1, 1986).
func common(a, b []Op) []match {
	first := 0
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	last := 0
	for last < min(len(a), len(b))-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	ends := []match{{0, 0, first}, {len(a) - last, len(b) - last, last}}
	between := myers(a[first:len(a)-last], b[first:len(b)-last])
	for i := range between {
		between[i].a += first
		between[i].b += first
	}
	return slices.Insert(ends, 1, between...)
}

// myers walks from (0,0) to (len(a),len(b)): right leaves out one of a, down puts in one of b, and diagonals, which are free, are what is common. far[d][k] is how far right the diagonal x-y = k-d can
// be followed after d steps that are not free.
func myers(a, b []Op) []match {
	var far [][]int
	for d := 0; d <= min(len(a)+len(b), maxDiff); d++ {
		row := make([]int, 2*d+1)
		for k := -d; k <= d; k += 2 {
			x := 0
			if d > 0 {
				x, _ = step(far[d-1], d, k)
			}
			for x < len(a) && x-k < len(b) && x-k >= 0 && a[x] == b[x-k] {
				x++
			}
			row[k+d] = x
			if x == len(a) && x-k == len(b) {
				return back(append(far, row), len(a), len(b))
			}
		}
		far = append(far, row)
	}
	return nil
}

// step is where the d-th step ends on diagonal k, and on which diagonal it began.
func step(before []int, d, k int) (x, from int) {
	at := func(k int) int { return before[k+d-1] }
	if k == -d || k != d && at(k-1) < at(k+1) {
		return at(k + 1), k + 1 // down
	}
	return at(k-1) + 1, k - 1 // right
}

// back goes the way that far has found from its end to its beginning.
func back(far [][]int, x, y int) []match {
	var out []match
	for d := len(far) - 1; d >= 0; d-- {
		k, start, from := x-y, 0, 0
		if d > 0 {
			start, from = step(far[d-1], d, k)
		}
		if x > start {
			out = append(out, match{start, start - k, x - start})
		}
		if d > 0 {
			x = far[d-1][from+d-1]
			y = x - from
		}
	}
	slices.Reverse(out)
	return out
}

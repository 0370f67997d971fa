package remat

import (
	"fmt"
	"strings"
)

// String is the plan as a table: a line of costs, then its operations in short, sixteen a line with
// the number of the first:
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

package remat

// Plan is a list of operations with their costs on the chain that they were made for.
type Plan struct {
	// Feasible reports whether a plan stays under the limit. If none does, Ops is empty and Peak is
	// the least that any plan needs.
	Feasible bool
	Limit    int64   // bytes; 0 is none
	Peak     int64   // bytes
	Time     float64 // microseconds
	// LowerBound is a time below every plan under the limit.
	LowerBound float64
	Ops        []Op
	// Chain is the fingerprint of the chain that the plan was made for, "" if unknown.
	Chain string
}

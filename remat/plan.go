package remat

// Plan is a list of operations, and what they cost by the chain that they were made for.
type Plan struct {
	// Feasible reports whether there are operations that stay under the limit. If there are none,
	// Ops is empty and Peak is the least that any plan needs.
	Feasible bool
	Limit    int64   // bytes; 0 is none
	Peak     int64   // bytes
	Time     float64 // microseconds
	// LowerBound is a time that no plan under the limit is below.
	LowerBound float64
	Ops        []Op
	// Chain is the fingerprint of the chain that the plan was made for, "" if unknown.
	Chain string
}

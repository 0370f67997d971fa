package remat

// Plan is a list of operations with their costs on the chain that they were made for.
type Plan struct {
	// Feasible reports whether some plan keeps the limit. If none does, Ops is empty and Peak is the
	// least limit that would do.
	Feasible   bool
	Limit      int64   // bytes; 0 is none
	Peak       int64   // bytes
	Time       float64 // microseconds
	LowerBound float64 // no plan within the limit takes fewer microseconds
	Ops        []Op
	Chain      string // the chain's fingerprint, "" if unknown
}

package plan

// Skip is a skip that moves between two stages. Places are indices into the stages' parcels.
type Skip struct {
	From, To           int
	FromPlace, ToPlace int
	Pops               int // by stage To: how many gradients it sends back

	first int // index of the first of these gradients among all that From receives
}

// Tie is a parameter that two stages use, none between them. The gradient of the later one's uses goes
// to the earlier.
type Tie struct {
	Earlier, Later           int
	EarlierPlace, LaterPlace int
}

package profile

// progress reports the measured part, in layers of the model. It never goes back.
type progress struct {
	report             func(done, layers int)
	layers             int
	all, done, current float64 // weights of all phases, of earlier ones, and of the current one
	told               float64 // the part reported last
}

// Weights of phases: about how long each takes.
const looking, sweepingForward, sweepingBackward = 20, 4, 8

// begin begins a phase.
func (p *progress) begin(weight float64) { p.done, p.current = p.done+p.current, weight }

// tell reports that a part of the phase is done.
func (p *progress) tell(part float64) {
	if p.report != nil {
		p.told = max(p.told, (p.done+p.current*part)/max(p.all, 1))
		p.report(min(int(float64(p.layers)*p.told+1e-6), p.layers), p.layers)
	}
}

package profile

// progress reports the measured part, in layers of the model. It never goes back.
type progress struct {
	report   func(done, layers int)
	layers   int
	from, to float64 // of the current phase
	told     float64 // the part reported last
}

// begin begins a phase, which takes a part of the time that is left.
func (p *progress) begin(part float64) { p.from, p.to = p.to, p.to+part*(1-p.to) }

// tell reports that a part of the phase is done.
func (p *progress) tell(part float64) {
	if p.report != nil {
		p.told = max(p.told, p.from+(p.to-p.from)*part)
		p.report(min(int(float64(p.layers)*p.told+1e-6), p.layers), p.layers)
	}
}

package profile

// progress reports the measured part, in layers of the model. It never goes back.
type progress struct {
	report            func(done, layers int)
	layers            int
	done, share, told float64 // of all that is measured: before this phase, in it, and reported
}

// begin begins a phase; share is its part of the whole.
func (p *progress) begin(share float64) { p.done, p.share = p.done+p.share, share }

// tell reports that a part of the phase is done.
func (p *progress) tell(part float64) {
	if p.report != nil {
		p.told = max(p.told, p.done+p.share*part)
		p.report(min(int(float64(p.layers)*p.told+1e-6), p.layers), p.layers)
	}
}

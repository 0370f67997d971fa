package pipe

import "penstock.example/profile"

// Chains is what the units of each stage cost, by stage, as they were measured for the policy Optimal:
// on the batch with the most rows if there were several. It is nil if nothing was measured. The caller
// must not change it. It waits for a measurement that goes on.
func (p *Pipe) Chains() []profile.Chain {
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	var out []profile.Chain
	for _, chains := range p.plans.chains {
		if len(chains) > 0 && (out == nil || chains[0].Given > out[0].Given) {
			out = chains
		}
	}
	return out
}

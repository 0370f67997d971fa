package planner

import (
	"slices"

	"penstock.example/schedule"
)

// Reducing is the plan as each of several replicas of the pipeline runs it: its program reduces the
// gradients of the stages over them ([schedule.AddReduce]). bytes has the most that each stage then
// holds of another replica's gradients at a time. Peaks are predicted again. Of a plan that was read it
// is not known what is held when gradients are reduced, and its peaks are raised by all of them; they
// may then be too high. The peaks may exceed limits, which [Plan.Check] tells. A plan whose program
// reduces already is returned as it is.
func (p *Plan) Reducing(bytes []int64) *Plan {
	if p.Program.Reduces() {
		return p
	}
	out := *p
	out.Program, out.Devices, out.Stages = schedule.AddReduce(p.Program), slices.Clone(p.Devices), slices.Clone(p.Stages)
	for i := range out.Devices {
		most := int64(0)
		for k := range out.Stages {
			if s := &out.Stages[k]; s.Device == i {
				s.memory.Reduction, most = bytes[k], max(most, bytes[k])
			}
		}
		if p.planned(i) && !p.sized(i) {
			out.Devices[i].Peak += most
		}
	}
	out.predictPeaks()
	return &out
}

package plan

import (
	"slices"

	"penstock.example/schedule"
)

// Reducing is the plan for each of several replicas of the pipeline: its program reduces the
// gradients of the stages over them ([schedule.AddReduce]). bytes is, by stage, the most bytes held
// of another replica's gradients at a time. Peaks are predicted again. The peaks of a plan that was
// read are raised by all of these bytes, as its footprints are not known; they may then be too
// high. The peaks may exceed limits, which [Plan.Check] reports. A plan with reductions is returned
// as it is.
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

package plan

import (
	"math"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Plan is the actions and operations of a pipe in a step. It is plain data and may be wrong;
// [Plan.Check] says whether it can run. A Plan that several goroutines read must not be changed.
type Plan struct {
	Program *schedule.Program // of a whole step
	Devices []DevicePlan      // by worker of the program
	Stages  []StagePlan

	skips []Skip
	ties  []Tie
}

// MicroBatches is the number of micro-batches of the plan's step; 0 without a program.
func (p *Plan) MicroBatches() int {
	if p.Program == nil {
		return 0
	}
	return p.Program.MicroBatches
}

// DevicePlan is the predictions for a device. All but the name is 0 unless its stages have the policy
// Optimal. Sizes are bytes. Times are microseconds of all its stages and micro-batches together.
type DevicePlan struct {
	Name  string // such as "cpu:0"
	Limit int64  // 0 is no limit
	Base  int64  // held whatever is recomputed
	// Peak is the most that can be held, Base included, if stages run ahead of each other as far as the
	// program lets them.
	Peak   int64
	Time   float64 // of forwards, recomputations and backwards
	Once   float64 // the same without recomputation
	Spread float64 // see remat.Chain
}

// StagePlan is the operations of one stage in a step.
type StagePlan struct {
	Device int // an index into the plan's Devices
	Layers int // of the model
	Policy Policy
	// Units is the number of layers in each unit where the policy is Optimal, nil for one unit. A loss
	// that ends the last stage counts as a layer. The first Prologue units have no backward.
	Units        []int
	Prologue     int
	MicroBatches []MicroBatch

	// The first numLarger micro-batches have the most rows and the footprint larger. The others
	// have the footprint smaller. Both are nil in a plan that was read.
	larger, smaller *remat.Footprint
	numLarger       int
	memory          Memory
}

func (s *StagePlan) footprint(microBatch int) *remat.Footprint {
	if microBatch < s.numLarger {
		return s.larger
	}
	return s.smaller
}

// MicroBatch is the operations of a stage on one micro-batch.
type MicroBatch struct {
	// Ops are operations on the units of the stage. The program's forward ends with the loss (L), its
	// recomputation before the first backward, and its backward performs the rest.
	Ops []remat.Op
	// Forward, Recompute and Backward are the predicted microseconds of these actions; 0 if unknown.
	Forward, Recompute, Backward float64
}

// timed returns operations with their times, to a nanosecond. The chain's layers are the units after
// the prologue.
func timed(ops []remat.Op, c remat.Chain, prologue int) MicroBatch {
	out := MicroBatch{Ops: withPrologue(ops, prologue)}
	sum := func(ops []remat.Op) (t float64) {
		for _, op := range ops {
			switch op.Kind {
			case remat.Forward, remat.ForwardKeep:
				t += c.Layers[op.Layer].ForwardNoGrad
			case remat.ForwardSave:
				t += c.Layers[op.Layer].Forward
			case remat.LossStep:
				t += c.Loss.Backward
			case remat.Backward:
				t += c.Layers[op.Layer].Backward
			}
		}
		return math.Round(1000*t) / 1000
	}
	forward, again, backward := Split(ops)
	out.Forward, out.Recompute, out.Backward = sum(forward), sum(again), sum(backward)
	return out
}

// Recomputed is the number of forwards of units that are repeated, over all micro-batches.
func (s StagePlan) Recomputed() (n int) {
	for _, m := range s.MicroBatches {
		runs := map[int]int{}
		for _, op := range m.Ops {
			if op.Kind == remat.Forward || op.Kind == remat.ForwardKeep || op.Kind == remat.ForwardSave {
				runs[op.Layer]++
			}
		}
		for _, times := range runs {
			n += times - 1
		}
	}
	return n
}

// Split splits a micro-batch's operations into forward, recomputation and backward.
func Split(ops []remat.Op) (forward, recompute, backward []remat.Op) {
	loss := slices.Index(ops, remat.Op{Kind: remat.LossStep})
	if loss < 0 {
		return ops, nil, nil
	}
	forward, rest := ops[:loss+1], ops[loss+1:]
	first := slices.IndexFunc(rest, func(op remat.Op) bool { return op.Kind == remat.Backward })
	if first < 0 {
		first = len(rest)
	}
	return forward, rest[:first], rest[first:]
}

// recomputes reports whether a stage has operations between a micro-batch's loss and first backward.
func (p *Plan) recomputes(stage, microBatch int) bool {
	if stage >= len(p.Stages) || microBatch >= len(p.Stages[stage].MicroBatches) {
		return false // the schedule asks about a larger program
	}
	_, again, _ := Split(p.Stages[stage].MicroBatches[microBatch].Ops)
	return len(again) > 0
}

// Fewer returns the plan for the first micro-batches alone, for a batch with fewer rows. A plan that
// was read keeps its peaks. If stages share a device, another device may need more than before, and
// exceed its limit: for 2 of 12,000 random problems.
func (p *Plan) Fewer(microBatches int) *Plan {
	if microBatches == p.Program.MicroBatches {
		return p
	}
	out := *p
	out.Program, out.Stages, out.Devices = p.Program.Fewer(microBatches), slices.Clone(p.Stages),
		slices.Clone(p.Devices)
	for i := range out.Stages {
		s := &out.Stages[i]
		s.MicroBatches = s.MicroBatches[:microBatches]
	}
	for i := range out.Devices {
		d := &out.Devices[i]
		d.Time, d.Once = 0, 0
	}
	out.predictPeaks()
	return &out
}

// replays replays the program on each device with known footprints.
func (p *Plan) replays(visit func(device int, r *replay)) {
	var g *schedule.Graph
	var latest []int
	for i := range p.Devices {
		if !slices.ContainsFunc(p.Stages,
			func(s StagePlan) bool { return s.Device == i && s.larger != nil }) {
			continue
		}
		if g == nil {
			g = p.Program.Graph()
			latest = g.LatestReceives()
		}
		visit(i, p.newReplay(g, latest, i))
	}
}

func (p *Plan) predictPeaks() {
	p.replays(func(i int, r *replay) { p.Devices[i].Peak = p.Devices[i].Base + r.peak(nil) })
}

// Refit returns the plan for the same problem with other memory. It returns nil if the plan would
// exceed a limit, or if more than 1 % of a limit has become free, so that a new plan may be faster.
func (p *Plan) Refit(now Problem) *Plan {
	out := *p
	out.Devices = slices.Clone(p.Devices)
	for i := range out.Devices {
		d := &out.Devices[i]
		if !p.planned(i) {
			continue
		}
		base := now.base(i)
		more := base - d.Base
		if now.Devices[i].Limit != d.Limit || d.Limit > 0 && (float64(-more) > 0.01*float64(d.Limit) ||
			d.Peak+more > d.Limit) {
			return nil
		}
		d.Base, d.Peak = base, d.Peak+more
	}
	return &out
}

// planned reports whether the memory of a device is planned.
func (p *Plan) planned(device int) bool {
	return slices.ContainsFunc(p.Stages,
		func(s StagePlan) bool { return s.Device == device && s.Policy == Optimal })
}

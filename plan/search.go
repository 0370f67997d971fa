package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.example/schedule"
)

// Candidate is a way to train, with its predicted step. Peaks and Limits are bytes.
type Candidate struct {
	Schedule     string
	Virtual      int // stages of each device
	MicroBatches int // of a replica
	Rows         int // of a micro-batch; 0 if the profile does not say
	Threads      int // of each device
	Replicas     int
	Devices      []string // names of the pipeline's devices; with replicas the first one's
	Balance      []int    // units of each stage
	Step         time.Duration
	Peaks        []int64         // by device; nil if it was not asked for
	Limits       []int64         // by device; 0 is none
	Busy         []time.Duration // by device
	Planned      *Plan           // program and operations
	// Timeline is the simulated step, transfers included, with the bytes of the devices.
	Timeline schedule.Timeline
	Links    schedule.Links // between the stages
}

// Run sets the timeline of a step, and Step and Busy.
func (p *Candidate) Run(line schedule.Timeline) {
	p.Timeline, p.Step, p.Busy = line, 0, make([]time.Duration, len(p.Devices))
	for _, e := range line.Events {
		p.Step = max(p.Step, e.End)
		if !e.Action.Kind.Transfer() && e.Action.Kind != schedule.Reduce {
			p.Busy[e.Worker] += e.End - e.Start
		}
	}
}

// Outcome is the result for one schedule.
type Outcome struct {
	Schedule   string
	Plan       *Candidate    // the best found; nil if none fits
	LowerBound time.Duration // no plan of the schedule takes less
	Lost       string        // why the schedule is not the best; "" if other steps are shorter

	short *MemoryError // what the lightest cut lacks, if none fits
}

// Result is the result of a search.
type Result struct {
	Best *Candidate // nil if no plan fits
	// LowerBound is a time that no plan of the searched space is below. Under limits it comes from plans
	// of each device alone. In about one of 1,000 searches a plan exists that takes 0.5 to 2.5 % less.
	LowerBound time.Duration
	Proved     bool      // Best takes LowerBound
	Schedules  []Outcome // in the order of schedule.Schedules
	// Short lists the devices that lack memory if no plan fits, for the cut whose fullest device needs
	// the smallest part of its limit. Within the limits that it names the search finds a plan.
	Short    *MemoryError
	Lightest []int // units of each stage of this cut
}

// Search finds the plan with the shortest step. It blocks until it is done, and fails with
// ctx.Err() when ctx ends. Wrong arguments are an *arg.ConfigError or a *remat.ChainError. It is no
// error if no plan fits: Best is nil, and Short lists the devices that lack memory.
//
// Schedules with the fewest micro-batches in flight are searched first. Under limits only steps
// shorter than the best so far are sought from the others. Among plans of the same step the one
// with the lowest peak is best, then the simplest schedule.
func Search(ctx context.Context, profile Profile, machine Machine, options Options) (*Result, error) {
	for _, err := range []error{profile.check(), machine.check(), options.check()} {
		if err != nil {
			return nil, err
		}
	}
	list, err := options.named()
	if err != nil {
		return nil, err
	}
	out := &Result{Schedules: make([]Outcome, len(list)), LowerBound: none}
	rival, lightest := int64(none), int64(math.MaxInt64)
	for done, i := range byInFlight(list) {
		options.report(list[i].Name, done, len(list))
		o, known, err := searchSchedule(ctx, profile, machine, options, list[i], rival)
		if err != nil {
			return nil, err
		}
		if out.Schedules[i] = o; o.Plan != nil {
			rival = min(rival, int64(o.Plan.Step))
		} else if o.short != nil && known.step < lightest {
			lightest, out.Short, out.Lightest = known.step, o.short, known.cut.counts()
		}
	}
	for _, o := range out.Schedules {
		out.LowerBound = min(out.LowerBound, o.LowerBound)
		if p := o.Plan; p != nil && (out.Best == nil || cmp.Or(cmp.Compare(p.Step, out.Best.Step),
			cmp.Compare(slices.Max(p.Peaks), slices.Max(out.Best.Peaks))) < 0) {
			out.Best = p
		}
	}
	if out.Best == nil {
		out.LowerBound = 0
		return out, nil
	}
	out.Short, out.Lightest = nil, nil
	out.Proved = out.LowerBound == out.Best.Step
	return out, nil
}

// byInFlight returns the indices of schedules in order, the fewest micro-batches in flight on a device
// first: as a rule these need the fewest bytes, and their plans are found soonest.
func byInFlight(list []schedule.Schedule) (order []int) {
	most := make([]int, len(list))
	for i, s := range list {
		order = append(order, i)
		if p, err := s.Program(2, 0, schedule.Config{MicroBatches: 8}); err == nil {
			most[i] = slices.Max(schedule.InFlight(p)) / s.Usual()
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return most[a] - most[b] })
	return order
}

// searchSchedule searches all spaces of a schedule, the shortest likely step first. rival is the step of
// another schedule's plan.
func searchSchedule(ctx context.Context, profile Profile, machine Machine, options Options,
	s schedule.Schedule, rival int64) (Outcome, found, error) {
	out := Outcome{Schedule: s.Name, LowerBound: none}
	spaces, why := options.spaces(profile, machine, s)
	if len(spaces) == 0 {
		out.Lost = why
		return out, found{}, nil
	}
	slices.SortStableFunc(spaces, func(a, b *space) int { return cmp.Compare(a.likely(), b.likely()) })
	var best *space
	var refused error
	known, bound, left := found{step: none}, int64(none), 3*options.plans()
	for _, p := range spaces {
		floor := p.floor()
		if floor >= known.step {
			continue
		}
		p.options.Plans = min(options.plans(), left)
		if left <= 0 || p.limited && known.fits() && floor >= rival {
			bound = min(bound, floor)
			continue
		}
		if refused = p.prepare(); refused != nil {
			continue
		}
		f, err := p.best(ctx, min(known.step, none), rival)
		if err != nil {
			return out, found{}, err
		}
		if p.limited {
			left -= p.solved
		}
		bound = min(bound, f.bound)
		if f.cut != nil && (best == nil || f.step < known.step) {
			known, best = f, p
		}
	}
	if !known.fits() {
		out.LowerBound = time.Duration(bound)
		if out.Lost = "no plan was found"; refused != nil && bound == none {
			out.Lost = refused.Error()
		}
		if best != nil {
			problem := best.problem(known.cut)
			problem.First = true // as devices are planned
			if _, err := Solve(ctx, problem); errors.As(err, &out.short) {
				out.Lost = "bytes: " + out.short.Shortages()
			} else if err != nil {
				return out, found{}, err
			}
		}
		return out, known, nil
	}
	plan, err := best.plan(ctx, known)
	if err != nil {
		return out, found{}, err
	}
	out.Plan, out.LowerBound = plan, min(plan.Step, time.Duration(bound))
	return out, known, nil
}

// plan plans a cut as a whole and simulates its program.
func (p *space) plan(ctx context.Context, f found) (*Candidate, error) {
	out := &Candidate{Schedule: p.schedule.Name, Virtual: p.virtual, MicroBatches: p.m, Rows: p.rows,
		Threads: p.threads, Replicas: p.replicas, Balance: f.cut.counts()}
	for _, w := range p.workers {
		out.Devices, out.Limits = append(out.Devices, w.name), append(out.Limits, w.bytes)
	}
	plan, err := Solve(ctx, p.problem(f.cut))
	if err != nil {
		return nil, fmt.Errorf("plan: the found plan does not hold, a fault of penstock: %w", err)
	}
	out.Planned, out.Links = plan, p.links(f.cut)
	times := p.plainTimes(f.cut)
	for s := range times {
		times[s] = p.plannedTimes(plan, s, f.cut)
	}
	line, err := out.Links.Simulate(plan.Program, durations(times))
	if err != nil {
		return nil, err
	}
	plan.Hold(line)
	out.Run(line)
	for w, d := range plan.Devices {
		out.Peaks = append(out.Peaks, d.Peak)
		if limit := p.workers[w].bytes; limit > 0 && d.Peak > limit {
			return nil, fmt.Errorf("plan: device %s needs %d bytes of %d, a fault of penstock", d.Name,
				d.Peak, limit)
		}
	}
	return out, nil
}

// spaces returns the spaces of a schedule, or why it has none.
func (w Options) spaces(profile Profile, machine Machine, s schedule.Schedule) (list []*space, why string) {
	why = "no number of micro-batches suits the rows that were measured"
	virtual, replicas := w.Virtual, w.Replicas
	if s.Virtual > 0 {
		virtual = []int{s.Virtual}
	} else if virtual == nil {
		virtual = []int{s.Usual()}
	}
	if replicas == nil {
		replicas = []int{1}
	}
	for i, c := range profile.Measured {
		threads := c.threads()
		for _, r := range replicas {
			chunks := w.MicroBatches
			if w.Batch > 0 {
				m := w.Batch / (r * max(c.Rows, 1))
				if m*r*c.Rows != w.Batch || m > mostMicroBatches || chunks != nil &&
					!slices.Contains(chunks, m) {
					continue
				}
				chunks = []int{m}
			} else if slices.ContainsFunc(profile.Measured[:i],
				func(o Costs) bool { return o.threads() == threads }) {
				continue
			}
			parts, fewest, most := machine.Parts(threads), w.Devices, w.Devices
			if w.Devices == 0 {
				fewest, most = 1, min(parts/r, profile.units())
			}
			if fewest*r > parts {
				why = fmt.Sprintf("%d devices with %d threads are wanted, and the machine has %d", fewest*r,
					threads, parts)
				continue
			}
			for n := fewest; n <= most; n++ {
				workers, link := machine.pipeline(machine.workers(threads, n*r, w.Limit), n, r)
				for _, v := range virtual {
					for _, m := range chunks {
						if p, err := newSpace(w, s, c, v, m, r, workers, link); err == nil {
							list = append(list, p)
						} else {
							why = err.Error()
						}
					}
				}
			}
		}
	}
	return list, why
}

// costsFor returns the costs of micro-batches with a number of rows, 0 for any.
func (p Profile) costsFor(rows, threads int) (Costs, bool) {
	at := slices.IndexFunc(p.Measured,
		func(m Costs) bool { return (rows == 0 || m.Rows == rows) && m.threads() == threads })
	if at < 0 {
		return Costs{}, false
	}
	return p.Measured[at], true
}

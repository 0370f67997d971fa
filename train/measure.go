package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
)

// MeasureConfig describes the training for which layers are measured. Measurements vary, and so do
// choices based on them.
type MeasureConfig struct {
	Batch   int            // rows
	Chunks  int            // micro-batches; 0 is 1
	Profile profile.Config // without a Target
	// Plan describes the steps if Plan.Limit limits the cut of [BalanceByTime]. Plan.Schedules has
	// one schedule, and each of Plan.Devices has Plan.Virtual stages.
	Plan plan.Options
	// Group is the processes that train the model together; nil is this process alone. All members call
	// the measuring function. Rank 0 measures and sends the result to the others.
	Group *group.Group
}

// measureFirstRows calls measure on rank 0 with a micro-batch of the first rows of a data set.
func measureFirstRows[T any](ctx context.Context, c MeasureConfig, what string, set data.Dataset,
	measure func(config profile.Config, input *torch.Tensor) (T, error)) (out T, err error) {
	if err := cmp.Or(arg.AtLeast("train", "Samples", set.Len(), 1),
		arg.AtLeast("train", "Batch", c.Batch, 1), arg.AtLeast("train", "Chunks", c.Chunks, 0)); err != nil {
		return out, err
	}
	batch := min(c.Batch, set.Len())
	chunks := min(max(c.Chunks, 1), batch)
	sample, err := firstRows(set, (batch+chunks-1)/chunks)
	if err != nil {
		return out, err
	}
	return group.FromFirst(ctx, c.Group, "train: "+what, func() (out T, err error) {
		on := newCtx(c.Profile.Device)
		defer on.Close()
		defer system.TrimProcess()
		config := c.Profile
		var input *torch.Tensor
		limit := config.Device.Memory().Limit
		if config.LiftLimit {
			config.Device.SetLimit(0)
		}
		err = torch.Try(func() {
			if input = tensorOf(on, sample.Input); config.Loss != nil {
				config.Target = []*torch.Tensor{tensorOf(on, sample.Target)}
			}
		})
		if config.Device.SetLimit(limit); err != nil {
			return out, fmt.Errorf("train: %s: %w", what, err)
		}
		return measure(config, input)
	})
}

// Measure measures the layers of a model with a micro-batch of the first rows of a data set. The model
// need not be materialised.
func Measure(ctx context.Context, model *nn.Sequential, set data.Dataset,
	config MeasureConfig) (profile.Profile, error) {
	return measureFirstRows(ctx, config, "timing layers", set,
		func(c profile.Config, input *torch.Tensor) (profile.Profile, error) {
			return profile.Measure(ctx, model, c, input)
		})
}

// MadeUp returns a data set of random samples for measurements.
func MadeUp(samples data.Info, rows int, seed uint64) data.Dataset {
	return &madeUp{samples, rows, seed}
}

type madeUp struct {
	info data.Info
	rows int
	seed uint64
}

func (m *madeUp) Len() int        { return m.rows }
func (m *madeUp) Info() data.Info { return m.info }

// Fill draws numbers from a normal distribution, and tokens and classes uniformly.
func (m *madeUp) Fill(b *data.Batch, indices []int) error {
	r := rand.New(rand.NewPCG(m.seed, 0))
	b.Rows = len(indices)
	b.Input.Reset(b.Rows, m.info.Input)
	b.Target.Reset(b.Rows, m.info.Target)
	for _, a := range []data.Array{b.Input, b.Target} {
		for i := range a.Float32 {
			a.Float32[i] = float32(r.NormFloat64())
		}
		for i := range a.Int64 {
			a.Int64[i] = r.Int64N(int64(m.info.Classes))
		}
	}
	return nil
}

// Balance is a model cut by measured times.
type Balance struct {
	Counts []int            // layers of each stage
	Times  []plan.StageTime // expected time of each stage for a micro-batch; nil if it keeps a limit
	// Lighter has the cuts to try if steps with Counts exceed the limit. The first is the cut that
	// needs the fewest bytes by the measurement. All cuts of a small model follow. Nil without a
	// limit.
	Lighter [][]int
	// Profile is the measurement. Only rank 0's can be used as pipe.Config.Profile.
	Profile profile.Profile
}

// BalanceByTime cuts a model into a stage for each policy. The slowest stage is as fast as any cut
// can make it, including transfers and recomputation. The cut does not change the trained weights.
// The model need not be materialised. If all policies are Optimal, the cut also keeps
// MeasureConfig.Plan's limit, if the measurement finds such a cut.
func BalanceByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, policies []pipe.Checkpoint,
	config MeasureConfig) (out Balance, err error) {
	if err := arg.Between("train", "Stages", len(policies), 1, len(model.Layers())); err != nil {
		return out, err
	}
	config.Profile.MicroBatches = min(max(config.Chunks, 1), config.Batch, set.Len())
	limited := config.Plan.Limit > 0 &&
		!slices.ContainsFunc(policies, func(k pipe.Checkpoint) bool { return k != pipe.Optimal })
	if limited {
		config.Profile.Balance = []int{len(model.Layers())}
	}
	return measureFirstRows(ctx, config, "timing layers", set,
		func(c profile.Config, input *torch.Tensor) (out Balance, err error) {
			if out.Profile, err = profile.Measure(ctx, model, c, input); err != nil {
				return out, err
			}
			out.Counts, out.Times, err = cutByTime(out.Profile, policies, c.MicroBatches)
			if err == nil && limited && len(out.Profile.Chains[0].Layers) > 0 {
				err = out.keepLimit(ctx, model, c, config.Plan)
			}
			out.Profile.Chains = nil
			return out, err
		})
}

// keepLimit cuts the model within the plan's limit.
func (b *Balance) keepLimit(ctx context.Context, model *nn.Sequential, c profile.Config,
	options plan.Options) error {
	options.MicroBatches = []int{c.MicroBatches}
	var machine plan.Machine
	threads := max(c.Threads, 1)
	for i := range options.Devices {
		machine.Devices = append(machine.Devices,
			plan.Device{Name: fmt.Sprint("device ", i), Threads: threads})
	}
	costs, units := unitCosts(model, b.Profile, 0, threads)
	layers := (&ModelPlan{Units: units}).Layers
	search := func() (*plan.Result, error) {
		return plan.Search(ctx, plan.Profile{Measured: []plan.Costs{costs}}, machine, options)
	}
	found, err := search()
	lightest := found
	if err == nil && found.Best != nil { // a search in which nothing fits finds the lightest cut
		options.Limit = 1
		lightest, err = search()
	}
	if err != nil {
		return err
	}
	if lightest.Lightest != nil { // otherwise the units are fewer than the stages
		b.Lighter = [][]int{layers(lightest.Lightest)}
	}
	if found.Best != nil {
		b.Counts, b.Times = layers(found.Best.Balance), nil
	}
	bytes := int64(1) // of activations
	for _, l := range b.Profile.Layers {
		bytes += l.Output + l.Saved
	}
	const most = 1 << 30 // bytes of all cuts together; measuring these takes seconds
	b.Lighter = append(b.Lighter, cutsOf(len(b.Profile.Layers), len(b.Counts), most/bytes)...)
	return nil
}

// cutsOf lists all cuts of layers, or none if they are more than most.
func cutsOf(layers, stages int, most int64) (list [][]int) {
	if stages == 1 {
		return [][]int{{layers}}
	}
	for n := 1; n <= layers-stages+1; n++ {
		rest := cutsOf(layers-n, stages-1, most-int64(len(list)))
		if rest == nil || int64(len(list)+len(rest)) > most {
			return nil
		}
		for _, cut := range rest {
			list = append(list, append([]int{n}, cut...))
		}
	}
	return list
}

func cutByTime(p profile.Profile, policies []pipe.Checkpoint, microBatches int) ([]int, []plan.StageTime,
	error) {
	config := plan.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		config.Recomputed = append(config.Recomputed, plan.Policy(k).Recomputed(microBatches))
	}
	return plan.ByTime(p.Layers, len(policies), config)
}

// Cut cuts measured layers into a stage for each policy, so that the slowest stage is as fast as possible, or
// with bySize the largest one as small as possible. It returns the number of layers of each stage, and its
// seconds for a micro-batch or its bytes. slots is the number of tensors that the optimizer keeps for each
// parameter (optim.Slots). Errors are plan.ByTime's.
func Cut(p profile.Profile, policies []pipe.Checkpoint, microBatches, slots int, bySize bool) (counts []int,
	costs []float64, err error) {
	if !bySize {
		counts, times, err := cutByTime(p, policies, microBatches)
		for _, t := range times {
			costs = append(costs, t.Total())
		}
		return counts, costs, err
	}
	config := plan.SizeConfig{State: float64(slots), Input: p.Input, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		graphs, inputs := plan.Policy(k).Held(microBatches)
		config.Held = append(config.Held, plan.Held{Graphs: graphs, Inputs: inputs})
	}
	counts, sizes, err := plan.BySize(p.Layers, len(policies), config)
	for _, s := range sizes {
		costs = append(costs, float64(s.Total()))
	}
	return counts, costs, err
}

// Threads is a number of threads chosen by measured times.
type Threads struct {
	N      int     // for pipe.Config.Threads
	Tried  int     // N; if N is 1, the fastest of the other numbers
	Faster float64 // speed of Tried relative to one thread: the median of the rounds
}

// ThreadsByTime measures with how many threads of each device a model trains fastest. It tries the
// powers of two below greatest, and greatest. In each round every number runs all layers forward
// and backward. A larger number must be at least 10 % faster. The last bits of results depend on
// the number (Recipe.Threads).
func ThreadsByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, greatest int,
	config MeasureConfig) (Threads, error) {
	if greatest <= 1 {
		return Threads{N: 1, Tried: 1, Faster: 1}, nil
	}
	var counts []int
	for n := 1; n < greatest; n *= 2 {
		counts = append(counts, n)
	}
	counts = append(counts, greatest)
	return measureFirstRows(ctx, config, "timing threads", set,
		func(c profile.Config, input *torch.Tensor) (out Threads, err error) {
			t, err := profile.Threads(ctx, model, c, counts, input)
			if err == nil {
				out = chooseThreads(t)
			}
			return out, err
		})
}

func chooseThreads(t profile.ThreadTimes) Threads {
	best, tried := 0, 1
	for i := range t.Threads {
		if t.Faster(i, best) >= 1.1 {
			best = i
		}
		if i > 0 && t.Faster(i, 0) > t.Faster(tried, 0) {
			tried = i
		}
	}
	if best > 0 {
		tried = best
	}
	return Threads{N: t.Threads[best], Tried: t.Threads[tried], Faster: t.Faster(tried, 0)}
}

// timeLink measures a link. It takes the shortest of ten transfers of 4 bytes for the latency, and
// the shortest of ten transfers of many bytes for the bandwidth.
func timeLink(on torch.Device, bytes int, transfer func(*torch.Tensor) (time.Duration, error)) (l plan.Link,
	err error) {
	c := torch.NewCtx(torch.Options{Device: on})
	defer c.Close()
	failed := torch.Try(func() {
		var shortest [2]time.Duration
		for i, numbers := range []int{1, bytes / 4} {
			t := c.Zeros(torch.Float32, int64(numbers))
			c.Synchronize()
			shortest[i] = math.MaxInt64
			for range 10 {
				var took time.Duration
				if took, err = transfer(t); err != nil {
					return
				}
				shortest[i] = min(shortest[i], max(took, time.Nanosecond))
			}
		}
		l = plan.Link{Latency: shortest[0],
			Bandwidth: float64(bytes) / max(shortest[1]-shortest[0], time.Microsecond).Seconds()}
	})
	return l, cmp.Or(failed, err)
}

// worseLink returns the greater latency and the lower bandwidth of two links. A bandwidth of 0 is unlimited.
func worseLink(a, b plan.Link) plan.Link {
	if a.Latency = max(a.Latency, b.Latency); a.Bandwidth == 0 || b.Bandwidth < a.Bandwidth {
		a.Bandwidth = b.Bandwidth
	}
	return a
}

// MeasureLinks returns the slowest link between a process and the next. All members of the group call it.
func MeasureLinks(ctx context.Context, g *group.Group) (slowest plan.Link, err error) {
	for first := range g.Size() - 1 {
		var mine plan.Link
		if end := g.Rank() - first; end == 0 || end == 1 { // this process is an end of the link
			mine, err = timeRoundTrips(g, first+1-end, end == 0)
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to the next", first), mine, err)
		if err != nil {
			return slowest, err
		}
		slowest = worseLink(slowest, all[first])
	}
	return slowest, nil
}

// timeRoundTrips times half of each round trip to a member and back.
func timeRoundTrips(g *group.Group, peer int, asks bool) (plan.Link, error) {
	turns := []func(*torch.Tensor, int, int) (link.Work, error){g.Send, g.Receive}
	if !asks {
		slices.Reverse(turns)
	}
	return timeLink(torch.CPU(0), 2<<20, func(t *torch.Tensor) (time.Duration, error) {
		began := time.Now()
		for _, turn := range turns {
			w, err := turn(t, peer, 0)
			if err == nil {
				err = w.Wait()
			}
			if err != nil {
				return 0, err
			}
		}
		return time.Since(began) / 2, nil
	})
}

// measureCopies returns the slowest link between two devices of this process.
func measureCopies(devices []PlanDevice) (slowest plan.Link, err error) {
	for i, to := range devices {
		for _, from := range devices[:i] {
			l, err := timeLink(from.Device, 64<<20, func(t *torch.Tensor) (time.Duration, error) {
				target := torch.NewCtx(torch.Options{Device: to.Device})
				defer target.Close()
				start := engine.Now(target)
				defer start.Free()
				target.CopyHere(t)
				end := engine.Now(target)
				defer end.Free()
				target.Synchronize()
				return end.Since(start), nil
			})
			if err != nil {
				return slowest, err
			}
			slowest = worseLink(slowest, l)
		}
	}
	return slowest, nil
}

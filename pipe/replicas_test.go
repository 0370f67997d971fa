package pipe_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock/group"
	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
	"penstock/torch"
)

// parts are the sizes of the parts of n rows, longer ones first.
func parts(n, m int64) (out []int64) {
	m = min(n, m)
	for i := range m {
		out = append(out, n/m)
		if i < n%m {
			out[i]++
		}
	}
	return out
}

// plainReplicas trains without a pipe: for each replica a loop over its micro-batches from gradients
// of zero, and then the sum of the replicas' gradients in their order. Buffers are those that replica
// 0 leaves.
func (q problem) plainReplicas(replicas, chunks int64, seed uint64) record {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Threads: 1, Autocast: q.autocast})
	defer c.Close()
	model := q.model()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), seed)
	var losses []float64
	var r record
	for step := range q.steps {
		nn.ZeroGrads(model)
		var buffers [][]byte // that replica 0 leaves
		var start nn.BufferCopy
		start.Take(nn.Buffers(model))
		sums := map[string]*torch.Tensor{}
		x, y, row, microBatch, total := q.input(c, step), q.target(c, step), int64(0), 0, 0.0
		for k, rows := range parts(q.rows, replicas) {
			start.Restore()
			loss := 0.0
			var deferred *nn.Deferred
			if q.deferred {
				deferred = nn.NewDeferred()
			}
			for _, n := range parts(rows, chunks) {
				weight := 1.0
				if q.loss.Reduction() == torch.ReduceMean {
					weight = float64(n) / float64(q.rows)
				}
				c.SetGrad(true)
				ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: microBatch, MicroBatches: len(parts(rows, chunks)),
					Seed: torch.Mix(seed, uint64(step)), Deferred: deferred})
				l := q.loss.Forward(ctx, model.Forward(ctx, c.Narrow(x, 0, row, n)), c.Narrow(y, 0, row, n))
				loss += float64(torch.Item[float32](l)) * weight
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{l}, []*torch.Tensor{c.Fill_(c.EmptyLike(l), weight)}, false)
				row, microBatch = row+n, microBatch+1
			}
			if q.deferred {
				deferred.Commit(nn.NewCtx(c, nn.Config{}))
			}
			total += loss
			for _, p := range nn.Params(model) {
				if g := c.GradOf(p.Tensor()); g == nil {
				} else if sums[p.Name] == nil {
					sums[p.Name] = g
				} else {
					sums[p.Name] = c.Add(sums[p.Name], g)
				}
			}
			nn.ZeroGrads(model)
			if k == 0 {
				for _, b := range nn.Buffers(model) {
					buffers = append(buffers, torch.Bytes(b.Tensor()))
				}
			}
		}
		for i, b := range nn.Buffers(model) {
			if err := torch.SetBytes(b.Tensor(), buffers[i]); err != nil {
				panic(err)
			}
		}
		for _, p := range nn.Params(model) {
			p.Tensor().SetGradOf(sums[p.Name])
		}
		losses = append(losses, total)
		if step == q.steps-1 {
			r = snapshot(model, losses, gradient)
		}
		descend(c, nn.Params(model))
		c.Close()
	}
	for name, value := range snapshot(model, losses, func(nn.NamedParam) []byte { return nil }).values {
		if value != nil {
			r.values[name] = value
		}
	}
	return r
}

// Replicas give the bits of a plain loop over the replicas, however many processes each of them has.
func TestTransparencyOfReplicas(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		live := torch.LiveTensors()
		replicas := rapid.IntRange(1, 3).Draw(t, "replicas")
		rows := rapid.Int64Range(int64(replicas), 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(rapid.IntRange(0, kindCount-1), 2, 8).Draw(t, "layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, unwrapped) }, rows: rows, steps: 2,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
			deferred: rapid.Bool().Draw(t, "deferred"), autocast: rapid.IntRange(0, 3).Draw(t, "autocast") == 0,
		}
		if rapid.Bool().Draw(t, "sum") {
			q.loss = nn.CrossEntropy().Sum()
		}
		cfg := pipe.Config{Chunks: rapid.IntRange(1, 4).Draw(t, "chunks"), Seed: rapid.Uint64().Draw(t, "seed"),
			DeferredBatchNorm: q.deferred, Autocast: q.autocast}
		randomSchedule(t, &cfg, len(q.model().Layers()))
		cfg.Checkpoint = rapid.SampledFrom(policies).Draw(t, "policy")
		if rapid.IntRange(0, 3).Draw(t, "optimal") == 0 {
			q.randomBudgets(t, &cfg)
			largest := int64(0) // of which one is received at a time
			for _, p := range nn.State(q.model()) {
				largest = max(largest, p.Bytes())
			}
			for i := range cfg.Budget {
				if cfg.Budget[i] > 0 {
					cfg.Budget[i] += largest
				}
			}
		}
		cfg.Replicas = replicas
		distinct := map[torch.Device]bool{}
		for _, d := range cfg.Devices {
			distinct[d] = true
		}
		processes := rapid.IntRange(1, len(distinct)).Draw(t, "processes of a replica")
		want := q.plainReplicas(int64(replicas), int64(cfg.Chunks), cfg.Seed)
		records, errs := each(replicas*processes, func(g *group.Group) (record, error) {
			cfg := cfg
			cfg.Group, cfg.Devices = g, slices.Clone(cfg.Devices)
			for i := range cfg.Devices { // a replica has devices of its own
				cfg.Devices[i].Index += 8 * (g.Rank() / processes)
			}
			return q.member(cfg, false)
		})
		for rank, err := range errs {
			if err != nil {
				t.Fatalf("process %d: %v", rank, err)
			}
		}
		for rank, r := range records {
			if fmt.Sprint(r.losses) != fmt.Sprint(want.losses) {
				t.Fatalf("process %d has losses %v, want %v", rank, r.losses, want.losses)
			}
			for name, value := range r.values {
				if string(value) != string(want.values[name]) {
					t.Fatalf("process %d: %s differs from the plain loop", rank, name)
				}
			}
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
		}
	})
}

// Replicas in one process have devices of their own, each with its account. The default gives them
// some; replicas that share one are refused on all of them.
func TestDevicesOfReplicas(t *testing.T) {
	torchtest.Check(t)
	open := func(replicas int, devices func(rank int) []torch.Device) ([]string, []error) {
		return each(replicas, func(g *group.Group) (string, error) {
			model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 3))
			defer nn.Free(model)
			p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Devices: devices(g.Rank()), Group: g, Replicas: replicas})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(p.Devices()), p.Close()
		})
	}
	got, errs := open(3, func(int) []torch.Device { return nil })
	if want := "[[cpu:0 cpu:1] [cpu:2 cpu:3] [cpu:4 cpu:5]]"; fmt.Sprint(got) != want || errors.Join(errs...) != nil {
		t.Errorf("devices %v, %v; want %s", got, errs, want)
	}
	_, errs = open(2, func(rank int) []torch.Device { return []torch.Device{torch.CPU(7 + rank), torch.CPU(8 + rank)} })
	for rank, err := range errs {
		var refused *pipe.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Devices" || !strings.Contains(err.Error(), "replicas 0 and 1 are in one process, and both have stages on cpu:8") {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

// Several batches of an update are one batch with all their rows and micro-batches: the weights, the
// running statistics, the dropout, the norms and the learning rates are the same to the bit.
func TestAccumulateIsOneBatch(t *testing.T) {
	check(t)
	for _, row := range []struct{ batch, chunks, n int }{{8, 4, 2}, {6, 3, 3}, {8, 2, 4}, {4, 2, 5}, {9, 1, 2}} {
		for _, balance := range [][]int{nil, {2, 3, 3}} {
			run := func(batch, chunks, n int) (losses []float64, all string) {
				s, closer := newRig(t, setup{balance: balance, batch: batch, chunks: chunks, accumulate: n, optimizer: "adam", config: optim.Config{LR: 0.01}})
				defer closer()
				s.Steps, s.ClipNorm, s.LRSchedule = int64(samples/(row.batch*row.n)), 0.3, optim.Linear{From: 0.1, To: 0.2, Steps: 3}
				s.OnStep = []train.Hook{func(i train.StepInfo) error {
					losses = append(losses, i.Loss)
					all += fmt.Sprintln(i.Step, i.Epoch, i.LR, i.GradNorm, i.Samples)
					return nil
				}}
				s.run(t)
				return losses, all + train.ParamsSHA256(s.model)
			}
			want, wantAll := run(row.batch*row.n, row.chunks*row.n, 1)
			got, all := run(row.batch, row.chunks, row.n)
			if all != wantAll {
				t.Errorf("%+v, balance %v: got\n%s\nwant\n%s", row, balance, all, wantAll)
			}
			if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) <= 1e-14*b }) {
				t.Errorf("%+v, balance %v: losses %v, want %v", row, balance, got, want)
			}
		}
	}
}

// plainly trains the network without a pipe by gradient descent: a loop over the micro-batches of
// all batches of an update, which ends at the end of an epoch.
func plainly(t *testing.T, chunks, n int, updates []int, rate float64) string {
	t.Helper()
	runtime.LockOSThread() // autograd orders what is used several times by numbers that it counts on each thread
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	model := network()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 7)
	l := loader(t)
	for step, batches := range updates {
		var all []data.Batch
		total := 0
		for len(all) < batches {
			b, err := l.Next(context.Background())
			if err != nil { // the end of an epoch
				continue
			}
			all, total = append(all, b), total+b.Rows
		}
		microBatch := 0
		for _, b := range all {
			x, y := torch.From(c, b.Input.Float32, b.Input.Shape...), torch.From(c, b.Target.Int64, b.Target.Shape...)
			start := 0
			for i := range chunks {
				rows := b.Rows / chunks
				if i < b.Rows%chunks {
					rows++
				}
				c.SetGrad(true)
				ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: microBatch, MicroBatches: chunks, Seed: torch.Mix(7, uint64(step))})
				loss := nn.CrossEntropy().Forward(ctx, model.Forward(ctx, c.Narrow(x, 0, int64(start), int64(rows))), c.Narrow(y, 0, int64(start), int64(rows)))
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{c.Fill_(c.EmptyLike(loss), float64(rows)/float64(total))}, false)
				microBatch, start = microBatch+1, start+rows
			}
		}
		for _, p := range nn.Params(model) {
			c.Add_(p.Tensor(), c.GradOf(p.Tensor()), -rate)
		}
		nn.ZeroGrads(model)
	}
	return train.ParamsSHA256(model)
}

// Micro-batches of different sizes, a short batch and an epoch's last update of fewer batches give what a plain
// loop gives. An epoch has 5 batches; the hook of its end is called after its last update.
func TestAccumulateOverUnevenBatches(t *testing.T) {
	check(t)
	for _, row := range []struct {
		n        int
		updates  []int // batches of each
		epochs   []int // of each update
		samples  []int
		finished string
	}{
		{2, []int{2, 2, 1, 2, 2}, []int{0, 0, 0, 1, 1}, []int{16, 16, 6, 16, 16}, "3 "},
		{3, []int{3, 2, 3, 2}, []int{0, 0, 1, 1}, []int{24, 14, 24, 14}, "2 4 "},
		{9, []int{5, 5}, []int{0, 1}, []int{38, 38}, "1 2 "},
	} {
		want := plainly(t, 3, row.n, row.updates, 0.05)
		for _, balance := range [][]int{nil, {4, 4}} {
			s, closer := newRig(t, setup{balance: balance, accumulate: row.n, optimizer: "sgd", config: optim.Config{LR: 0.05}})
			var epochs, counts []int
			finished := ""
			s.OnStep = []train.Hook{func(i train.StepInfo) error {
				epochs, counts = append(epochs, i.Epoch), append(counts, i.Samples)
				if at := s.Progress(); i.Samples != samples && at.Position.Batch == 0 {
					t.Errorf("%+v: after step %d the position is %+v", row, i.Step, at)
				}
				return nil
			}}
			s.OnEpoch = func(int) error { finished += fmt.Sprint(s.Step, " "); return nil }
			if s.Steps = int64(len(row.updates)); row.finished != "3 " {
				s.Steps, s.Epochs = 0, 2
			}
			s.run(t)
			if !slices.Equal(epochs, row.epochs) || !slices.Equal(counts, row.samples) || finished != row.finished {
				t.Errorf("%d batches an update: epochs %v, samples %v, epochs that ended after steps %s", row.n, epochs, counts, finished)
			}
			if train.ParamsSHA256(s.model) != want {
				t.Errorf("%d batches an update, balance %v: other weights than a plain loop", row.n, balance)
			}
			closer()
		}
	}
}

// cancelling is a data set that ends a context when it is read the n-th time.
type cancelling struct {
	data.Dataset
	left   *int
	cancel func()
}

func (d cancelling) Fill(b *data.Batch, indices []int) error {
	if *d.left--; *d.left == 0 {
		d.cancel()
	}
	return d.Dataset.Fill(b, indices)
}

// A run that is interrupted while it reads the batches of an update stands before all of them: it
// goes on, or is resumed elsewhere, with the bits of a run that was not.
func TestInterruptWhileBatchesAreRead(t *testing.T) {
	check(t)
	const n, steps = 3, 5
	whole, closer := newRig(t, setup{accumulate: n})
	whole.Steps = steps
	whole.run(t)
	want := train.ParamsSHA256(whole.model)
	closer()
	for reads := 1; reads <= 7; reads++ { // an update of 3 batches and one of 2 are an epoch
		s, closer := newRig(t, setup{accumulate: n})
		ctx, cancel := context.WithCancel(context.Background())
		set, _ := dataset(t)
		left := reads
		l := must.Get(data.NewLoader(cancelling{set, &left, cancel}, data.LoaderConfig{BatchSize: batch, Seed: 7, Shuffle: true}))(t)
		s.Loader, s.Steps = l, steps
		r, err := s.Run(ctx)
		cancel()
		if err != nil || !r.Interrupted {
			t.Fatalf("reading batch %d: %+v, %v", reads, r, err)
		}
		if at := s.Progress().Position; at.Batch != 5 && at.Batch%n != 0 {
			t.Errorf("reading batch %d: the run stands at %+v, in the middle of an update", reads, at)
		}
		store := train.Store{Dir: filepath.Join(t.TempDir(), "out")}
		must.Do(t, store.Prepare())
		save(t, store, s)
		next, closeNext := resume(t, store, setup{balance: []int{4, 4}, accumulate: n})
		next.Steps = steps
		next.run(t)
		s.run(t)
		if a, b := train.ParamsSHA256(s.model), train.ParamsSHA256(next.model); a != want || b != want {
			t.Errorf("reading batch %d: going on gives the weights %s, resuming %s, want %s", reads, a, b, want)
		}
		l.Close()
		closer()
		closeNext()
	}
}

// A step that fails in a later batch of its update was not taken: nothing of the batches before is
// left, and the step is taken again with all of them.
func TestFailureInALaterBatch(t *testing.T) {
	check(t)
	const n = 3
	whole, closer := newRig(t, setup{accumulate: n})
	whole.Steps = 3
	whole.run(t)
	want := train.ParamsSHA256(whole.model)
	closer()
	s, closer := newRig(t, setup{accumulate: n})
	defer closer()
	calls := 0
	loss := s.Loss
	// A batch has 3 micro-batches, of which 2 compute the loss twice, and the second step 2 batches.
	s.Loss = spoiled{loss, math.NaN(), &calls, n*5 + 5 + 2}
	before, hash := live(), ""
	s.OnStep = []train.Hook{func(i train.StepInfo) error { before, hash = live(), train.ParamsSHA256(s.model); return nil }}
	s.Steps = 3
	r, err := s.Run(context.Background())
	var failed *train.StepError
	if !errors.Is(err, train.ErrDiverged) || !errors.As(err, &failed) || failed.Step != 2 || r.Step != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if train.ParamsSHA256(s.model) != hash || live() != before || s.Progress().Position.Batch != n {
		t.Errorf("the step left something: %v bytes, and %v before it; the run stands at %+v", live(), before, s.Progress())
	}
	s.Loss = loss
	s.run(t)
	if train.ParamsSHA256(s.model) != want {
		t.Error("other weights than without the failure")
	}
}

// Processes and replicas give the same weights, losses and norms however they are spread.
func TestAccumulateInAGroup(t *testing.T) {
	check(t)
	for _, replicas := range []int{1, 2} {
		want := ""
		for _, processes := range []int{1, 2, 3} {
			said := make([]string, replicas*processes)
			for rank, err := range inProcesses(replicas*processes, func(g *group.Group) error {
				s, closer := newRig(t, setup{balance: []int{2, 3, 3}, batch: 10, accumulate: 3, chunks: 2, group: g, replicas: replicas})
				defer closer()
				s.Steps, s.ClipNorm = 5, 0.3
				var b strings.Builder
				s.OnStep = []train.Hook{func(i train.StepInfo) error {
					_, err := fmt.Fprintln(&b, i.Step, i.Epoch, i.Loss, i.GradNorm, i.Samples)
					return err
				}}
				if _, err := s.Run(context.Background()); err != nil {
					return err
				}
				hash, err := train.ParamsSHA256In(g, s.model)
				fmt.Fprintln(&b, hash)
				said[g.Rank()] = b.String()
				return err
			}) {
				if err != nil {
					t.Fatalf("rank %d of %d replicas of %d processes: %v", rank, replicas, processes, err)
				}
			}
			for rank, got := range said {
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("rank %d of %d replicas of %d processes saw\n%swant\n%s", rank, replicas, processes, got, want)
				}
			}
		}
		if replicas > 1 {
			continue
		}
		s, closer := newRig(t, setup{batch: 10, accumulate: 3, chunks: 2})
		s.Steps, s.ClipNorm = 5, 0.3
		s.run(t)
		if !strings.Contains(want, train.ParamsSHA256(s.model)) {
			t.Error("processes have other weights than one alone")
		}
		closer()
	}
}

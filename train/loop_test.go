package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

func TestRunEnds(t *testing.T) {
	tests := []struct {
		reason           string
		steps            int64
		epochs           int
		start            train.Progress
		wantStep         int64
		wantEpochsClosed []int
	}{
		{reason: "by steps", steps: 3, wantStep: 3},
		{reason: "by steps, in a later epoch", steps: 7, wantStep: 7, wantEpochsClosed: []int{0}},
		{reason: "by epochs: five batches each, the last one short", epochs: 2, wantStep: 10,
			wantEpochsClosed: []int{0, 1}},
		{reason: "whichever comes first: steps", steps: 3, epochs: 2, wantStep: 3},
		{reason: "whichever comes first: epochs", steps: 30, epochs: 1, wantStep: 5,
			wantEpochsClosed: []int{0}},
		{reason: "steps count from the start", steps: 7,
			start: train.Progress{Step: 6, Position: data.Position{Epoch: 1, Batch: 1}}, wantStep: 7},
		{reason: "nothing is left to do", steps: 6,
			start: train.Progress{Step: 6, Position: data.Position{Epoch: 1, Batch: 1}}, wantStep: 6},
		{reason: "an epoch of which only the end is left", epochs: 1,
			start:    train.Progress{Step: 5, Position: data.Position{Epoch: 0, Batch: 5}},
			wantStep: 5, wantEpochsClosed: []int{0}},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			check(t)
			s, _ := newRig(t, setup{start: tt.start})
			s.Steps, s.Epochs = tt.steps, tt.epochs
			var seen []int64
			s.OnStep = []train.Hook{func(i train.StepInfo) error { seen = append(seen, i.Step); return nil }}
			var closed []int
			s.OnEpoch = func(epoch int) error { closed = append(closed, epoch); return nil }
			r := s.run(t)
			if r.Step != tt.wantStep || r.Interrupted {
				t.Errorf("got %+v, want step %d", r, tt.wantStep)
			}
			for i, step := range seen {
				if step != tt.start.Step+int64(i)+1 {
					t.Errorf("hooks saw steps %v", seen)
					break
				}
			}
			if !reflect.DeepEqual(closed, tt.wantEpochsClosed) {
				t.Errorf("epochs %v ended, want %v", closed, tt.wantEpochsClosed)
			}
		})
	}
}

// TestStepLeavesNothing: after each step exactly as many bytes are live on each device, whatever
// the cut, the short last batch and the clipping.
func TestStepLeavesNothing(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{balance: []int{3, 2, 3}})
	s.Steps, s.ClipNorm = 11, 0.5
	var after [][3]int64
	s.OnStep = []train.Hook{func(i train.StepInfo) error {
		after = append(after, live())
		for d, peak := range i.Peak {
			if peak <= after[len(after)-1][d] {
				t.Errorf("step %d: device %d has a peak of %d bytes and %d live", i.Step, d, peak,
					after[len(after)-1][d])
			}
		}
		return nil
	}}
	s.run(t)
	for i, l := range after {
		if l != after[0] {
			t.Errorf("live bytes are %v after step %d, %v after step 1", l, i+1, after[0])
		}
	}
}

func TestHookErrorEndsTheRun(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	boom := errors.New("boom")
	var after bool
	s.OnStep = []train.Hook{
		func(i train.StepInfo) error {
			if i.Step == 2 {
				return boom
			}
			return nil
		},
		func(i train.StepInfo) error { after = i.Step == 2; return nil },
	}
	r, err := s.Run(context.Background())
	if err != boom || r.Step != 2 || after {
		t.Errorf("got %+v, %v; a later hook ran: %v", r, err, after)
	}
	s.OnStep = nil
	s.OnEpoch = func(int) error { return boom }
	if r, err = s.Run(context.Background()); err != boom || r.Step != 5 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// spoiled is a loss that is not a number from some call on.
type spoiled struct {
	nn.Loss
	value float64
	calls *int
	from  int
}

func (s spoiled) Forward(c *nn.Ctx, output, target *torch.Tensor) *torch.Tensor {
	loss := s.Loss.Forward(c, output, target)
	if *s.calls++; *s.calls > s.from {
		return c.MulScalar(loss, s.value)
	}
	return loss
}

func TestDivergence(t *testing.T) {
	for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		check(t)
		s, closer := newRig(t, setup{})
		calls := 0
		// A step has 3 micro-batches, and a recomputed last stage computes the loss twice in 2 of
		// them.
		s.Loss = spoiled{s.Loss, value, &calls, 3 + 2}
		var before string
		s.OnStep = []train.Hook{func(train.StepInfo) error { before = sumOf(s.model); return nil }}
		r, err := s.Run(context.Background())
		var failed *train.StepError
		if !errors.Is(err, train.ErrDiverged) || !errors.As(err, &failed) || failed.Step != 2 || r.Step != 1 {
			t.Errorf("%v: got %+v, %v", value, r, err)
		}
		if after := sumOf(s.model); after != before {
			t.Errorf("%v: the step that diverged changed parameters or running statistics", value)
		}
		closer()
	}
}

// TestScaler: scales are powers of two, so that weights are those without; the run goes on with the
// scale of the checkpoint; and a step whose gradients are not finite changes no weight.
func TestScaler(t *testing.T) {
	check(t)
	hash := func(clip float64, scaler *optim.Scaler) (sum string, left *optim.Scaler, norm float64) {
		s, closer := newRig(t, setup{balance: []int{4, 4}, devices: testDevices(2), optimizer: "adam",
			config: optim.Config{LR: 0.01}})
		defer closer()
		s.Steps, s.ClipNorm, s.Scaler = 3, clip, scaler
		s.OnStep = []train.Hook{func(i train.StepInfo) error { norm = i.GradNorm; return nil }}
		s.run(t)
		return sumOf(s.model), s.Progress().Scaler, norm
	}
	for _, clip := range []float64{0, 0.3} {
		want, none, norm := hash(clip, nil)
		got, left, scaled := hash(clip, &optim.Scaler{Interval: 2})
		if got != want || none != nil || norm != scaled {
			t.Errorf("clip %v: other weights with a scaler, or another norm: %v, without %v; %+v", clip,
				scaled, norm, none)
		}
		if *left != (optim.Scaler{Scale: 1 << 17, Interval: 2, Passed: 1}) {
			t.Errorf("clip %v: the scaler is %+v", clip, *left)
		}
	}

	s, _ := newRig(t, setup{balance: []int{4, 4}, devices: testDevices(2), optimizer: "sgd",
		config: optim.Config{LR: 0.1}})
	s.Steps, s.ClipNorm, s.Scaler = 1, 1, &optim.Scaler{Scale: 1 << 10}
	before := values(s.model)
	s.OnStep = []train.Hook{func(i train.StepInfo) error {
		if i.GradNorm != 0 {
			t.Errorf("the norm of gradients that were dropped is %v", i.GradNorm)
		}
		return nil
	}}
	s.Loss = spoiling{s.Loss}
	s.run(t)
	if same := slices.Equal(values(s.model), before); !same ||
		*s.Scaler != (optim.Scaler{Scale: 1 << 9, Interval: 2000, Skipped: 1}) {
		t.Errorf("a step whose gradients are not finite: weights stay: %v, %+v", same, *s.Scaler)
	}
}

// spoiling is a loss that is finite and whose gradients are not.
type spoiling struct{ nn.Loss }

func (l spoiling) Forward(c *nn.Ctx, y, target *torch.Tensor) *torch.Tensor {
	return l.Loss.Forward(c, c.MulScalar(c.MulScalar(y, 1e-38), 1e38), target) // backward goes by 1e38 first
}

// TestClipNorm: with a rate of 1 and no momentum a step moves the parameters by the norm of the
// clipped gradients.
func TestClipNorm(t *testing.T) {
	for _, limit := range []float64{1e-3, 1e6} {
		check(t)
		s, closer := newRig(t, setup{balance: []int{4, 4}, devices: testDevices(2), optimizer: "sgd",
			config: optim.Config{LR: 1}})
		s.Steps, s.ClipNorm = 1, limit
		before := values(s.model)
		var norm float64
		s.OnStep = []train.Hook{func(i train.StepInfo) error { norm = i.GradNorm; return nil }}
		s.run(t)
		var moved float64
		for i, v := range values(s.model) {
			moved += (v - before[i]) * (v - before[i])
		}
		if want := min(norm, limit); math.Abs(math.Sqrt(moved)-want) > 1e-3*want {
			t.Errorf("limit %v: gradients of norm %v moved the parameters by %v, want %v", limit, norm,
				math.Sqrt(moved), want)
		}
		closer()
	}
}

func values(model *nn.Sequential) []float64 {
	var out []float64
	for _, p := range nn.Params(model) {
		for _, v := range torch.Values[float32](p.Tensor()) {
			out = append(out, float64(v))
		}
	}
	return out
}

// Several batches of an update are one batch with all their rows and micro-batches: the weights, the
// running statistics, the dropout, the norms and the learning rates are the same to the bit.
func TestAccumulateIsOneBatch(t *testing.T) {
	check(t)
	for _, row := range []struct{ batch, chunks, n int }{{8, 4, 2}, {6, 3, 3}, {8, 2, 4}, {4, 2, 5},
		{9, 1, 2}} {
		for _, balance := range [][]int{nil, {2, 3, 3}} {
			run := func(batch, chunks, n int) (losses []float64, all string) {
				s, closer := newRig(t, setup{balance: balance, batch: batch, chunks: chunks, accumulate: n,
					optimizer: "adam", config: optim.Config{LR: 0.01}})
				defer closer()
				s.Steps, s.ClipNorm = int64(samples/(row.batch*row.n)), 0.3
				if balance == nil { // each batch has another weight
					s.Loss = nn.CrossEntropy(nn.LossConfig{IgnoreIndex: new(int64(1)),
						Weight: []float32{0.5, 2, 1.25}})
				}
				s.LRSchedule = func(step int) float64 { return 0.1 + 0.03*float64(step) }
				s.OnStep = []train.Hook{func(i train.StepInfo) error {
					losses = append(losses, i.Loss)
					all += fmt.Sprintln(i.Step, i.Epoch, i.LR, i.GradNorm, i.Samples)
					return nil
				}}
				s.run(t)
				return losses, all + sumOf(s.model)
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
	// autograd orders what is used several times by numbers that it counts on each thread
	runtime.LockOSThread()
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
			x, y := torch.From(c, b.Input.Float32, b.Input.Shape...),
				torch.From(c, b.Target.Int64, b.Target.Shape...)
			start := 0
			for i := range chunks {
				rows := b.Rows / chunks
				if i < b.Rows%chunks {
					rows++
				}
				c.SetGrad(true)
				ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: microBatch, MicroBatches: chunks,
					Seed: torch.Mix(7, uint64(step))})
				loss := nn.CrossEntropy().Forward(ctx,
					model.Forward(ctx, c.Narrow(x, 0, int64(start), int64(rows))), c.Narrow(y, 0,
						int64(start), int64(rows)))
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{loss},
					[]*torch.Tensor{c.Fill_(c.Op("aten::empty_like", loss),
						float64(rows)/float64(total))}, false)
				microBatch, start = microBatch+1, start+rows
			}
		}
		for _, p := range nn.Params(model) {
			c.Add_(p.Tensor(), c.GradOf(p.Tensor()), -rate)
		}
		nn.ZeroGrads(model)
	}
	return sumOf(model)
}

// Micro-batches of different sizes, a short batch and an epoch's last update of fewer batches give what
// a plain loop gives. An epoch has 5 batches; the hook of its end is called after its last update.
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
			s, closer := newRig(t, setup{balance: balance, accumulate: row.n, optimizer: "sgd",
				config: optim.Config{LR: 0.05}})
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
			if !slices.Equal(epochs, row.epochs) || !slices.Equal(counts, row.samples) ||
				finished != row.finished {
				t.Errorf("%d batches an update: epochs %v, samples %v, epochs that ended after steps %s",
					row.n, epochs, counts, finished)
			}
			if sumOf(s.model) != want {
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
	want := sumOf(whole.model)
	closer()
	for reads := 1; reads <= 7; reads++ { // an update of 3 batches and one of 2 are an epoch
		s, closer := newRig(t, setup{accumulate: n})
		ctx, cancel := context.WithCancel(context.Background())
		set, _ := dataset(t)
		left := reads
		l := must.Get(data.NewLoader(cancelling{set, &left, cancel},
			data.LoaderConfig{BatchSize: batch, Seed: 7, Shuffle: true}))(t)
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
		save(t, store, s)
		next, closeNext := resume(t, store, setup{balance: []int{4, 4}, accumulate: n})
		next.Steps = steps
		next.run(t)
		s.run(t)
		if a, b := sumOf(s.model), sumOf(next.model); a != want || b != want {
			t.Errorf("reading batch %d: going on gives the weights %s, resuming %s, want %s", reads, a, b,
				want)
		}
		l.Close()
		closer()
		closeNext()
	}
}

// Processes and replicas give the same weights, losses, norms and validations however they are spread.
func TestAccumulateInAGroup(t *testing.T) {
	check(t)
	for _, replicas := range []int{1, 2} {
		want := ""
		for _, processes := range []int{1, 2, 3} {
			said := make([]string, replicas*processes)
			inAll(t, replicas*processes, func(g *group.Group) error {
				s, closer := newRig(t, setup{balance: []int{2, 3, 3}, batch: 10, accumulate: 3, chunks: 2,
					group: g, replicas: replicas})
				defer closer()
				s.Steps, s.ClipNorm = 5, 0.3
				var b strings.Builder
				s.OnStep = []train.Hook{func(i train.StepInfo) error {
					_, err := fmt.Fprintln(&b, i.Step, i.Epoch, i.Loss, i.GradNorm, i.Samples)
					return err
				}}
				_, held := dataset(t)
				s.Validation = &train.Validation{Set: held, OnResult: func(v train.ValidationInfo) error {
					_, err := fmt.Fprintln(&b, v.Step, v.Epoch, *v.Loss, *v.Accuracy, v.Better, v.Partial)
					return err
				}}
				if _, err := s.Run(context.Background()); err != nil {
					return err
				}
				hash, err := train.ParamsSHA256(g, s.model)
				fmt.Fprintln(&b, hash)
				said[g.Rank()] = b.String()
				return err
			})
			for rank, got := range said {
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("rank %d of %d replicas of %d processes saw\n%swant\n%s", rank, replicas,
						processes, got, want)
				}
			}
		}
		if replicas > 1 {
			continue
		}
		s, closer := newRig(t, setup{batch: 10, accumulate: 3, chunks: 2})
		s.Steps, s.ClipNorm = 5, 0.3
		s.run(t)
		if !strings.Contains(want, sumOf(s.model)) {
			t.Error("processes have other weights than one alone")
		}
		closer()
	}
}

// An epoch's last batch with fewer rows than replicas ends a run before its first step, unless the run
// ends before that batch.
func TestShortLastBatch(t *testing.T) {
	check(t)
	// the 38 samples are three batches of 12 and one of 2
	for _, row := range []struct {
		accumulate, epochs int
		steps, from        int64
		refused            bool
	}{
		{0, 1, 0, 0, true}, {0, 0, 4, 0, true}, {0, 0, 3, 0, false}, {0, 0, 4, 3, true},
		{0, 0, 3, 2, false}, {4, 0, 1, 0, true}, {0, 0, 2, 2, false}, {2, 0, 1, 0, false},
	} {
		var all sync.WaitGroup
		for _, g := range group.Local(3) {
			start := train.Progress{Step: row.from}
			start.Position.Batch = int(row.from)
			all.Go(func() {
				s, closer := newRig(t, setup{batch: 12, chunks: 1, group: g, replicas: 3,
					accumulate: row.accumulate, start: start})
				s.Steps, s.Epochs = row.steps, row.epochs
				defer closer()
				r, err := s.Run(context.Background())
				var within *train.StepError
				switch {
				case !row.refused && (err != nil || r.Step != row.steps):
					t.Errorf("%+v: %+v, %v", row, r, err)
				case row.refused && (err == nil || errors.As(err, &within) || r.Step != row.from ||
					!strings.Contains(err.Error(),
						"too few rows, 2, in an epoch's last batch: there are 3 replicas")):
					t.Errorf("%+v: after step %d: %v", row, r.Step, err)
				}
			})
		}
		all.Wait()
	}
}

// The last of 38 rows in batches of 37 is one that batch norm cannot take. The run is refused before its
// first step, unless it does not get there or leaves that batch out.
func TestLastBatchOfOneRow(t *testing.T) {
	check(t)
	for _, tt := range []struct {
		setup
		steps int64
		want  string
	}{
		{setup{batch: 37}, 2, `DropLast is false: too few rows, 1, in an epoch's last batch: stage 0, ` +
			`micro-batch 0, layer "2", forward: `},
		{setup{batch: 37}, 1, ""},
		{setup{batch: 37, dropLast: true}, 2, ""},
		{setup{batch: 36, chunks: 2, balance: []int{1, 7}}, 2, "too few rows, 2, in an epoch's last batch: " +
			"stage 1"},
		{setup{batch: 36, chunks: 1}, 2, ""},
	} {
		s, closer := newRig(t, tt.setup)
		s.Steps = tt.steps
		before := sumOf(s.model)
		r, err := s.Run(context.Background())
		if tt.want == "" {
			if err != nil || r.Step != tt.steps {
				t.Errorf("%+v: %+v, %v", tt.setup, r, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.want) || r.Step != 0 ||
			strings.Contains(err.Error(), "larger micro-batches") || sumOf(s.model) != before {
			t.Errorf("%+v: %+v, %v", tt.setup, r, err)
		}
		closer()
	}
}
